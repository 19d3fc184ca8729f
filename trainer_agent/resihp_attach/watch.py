"""The few lines that a training loop may add, and what all hooks write to.

    from resihp_attach import watch

    for batch in loader:
        with watch.iteration():
            with watch.micro_batch(lengths=batch.lengths):
                loss(model(batch)).backward()
            optimizer.step()
    with watch.phase("eval", max_s=600): ...
    with watch.protect("upload", max_s=120): ...

Nothing here raises into the job, and everything is free of effect where no agent is named.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from resihp_attach import lengths as tokens
from resihp_attach import place, stuck
from resihp_attach.client import Client
from resihp_attach.guard import guard
from resihp_attach.processor import delay_of_this_thread
from resihp_attach.recorder import Recorder

_LOOK_S = 2.0
"""How often a rank that hangs is looked at."""


class Watch:
    """Of this process; made once, as `resihp_attach.watch`."""

    def __init__(self) -> None:
        self.recorder = Recorder(time.perf_counter, self._emit, delay_of_this_thread())
        self.client: Client | None = None
        self.place: place.Place | None = None
        self._looked_s = 0.0
        self._look: dict[str, Any] = {}
        self._error = ""
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    # --- a loop's own words ---------------------------------------------------------------------------------------

    @contextmanager
    def iteration(self, lengths: Iterable[int] | None = None) -> Iterator[None]:
        """One optimizer step. `lengths`: of the documents of its only micro-batch."""
        self._declare(lengths)
        yield
        self.step()

    @contextmanager
    def micro_batch(self, lengths: Iterable[int] | None = None) -> Iterator[None]:
        """One forward and backward pass. `lengths`: of its documents, in tokens."""
        self._declare(lengths)
        with self.recorder.unit(self.recorder.declared):
            yield

    @contextmanager
    def phase(self, name: str, max_s: float = 0.0) -> Iterator[None]:
        """Work besides training (`eval`, `checkpoint`). For `max_s` seconds the job may show no progress in it."""
        with self.recorder.in_phase(str(name)[:64], float(max_s)):
            yield

    def protect(self, name: str, *, max_s: float) -> Any:
        """As `phase`, for something that is known to take long."""
        return self.phase(name, max_s)

    @guard("loss")
    def loss(self, value: Any) -> None:
        """The loss of the iteration that goes on: a finite number, or a tensor of one on the host."""
        number = float(value.detach() if hasattr(value, "detach") else value)
        self.recorder.loss = number if number - number == 0.0 else None

    @guard("step")
    def step(self) -> None:
        """The iteration is over (hooks say so by themselves when a torch optimizer steps)."""
        self.start()
        self.recorder.step_done()

    @guard("lengths")
    def _declare(self, lengths: Iterable[int] | None) -> None:
        if lengths is not None:
            self.recorder.declared = tokens.of_lengths(lengths)

    # --- the line to the agent ------------------------------------------------------------------------------------

    @guard("start")
    def start(self) -> None:
        """Open the line, if an agent is named and it is not open. Called at the first step at the latest."""
        if self.client is not None:
            return
        path, me = os.environ.get(place.SOCKET), str(os.getpid())
        if not path or os.environ.setdefault(place.OWNER, me) != me:
            return
        self.place = _with_torch_rank(place.read_place())
        self.client = Client(path, self._hello, self._state)
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(guard("good-bye")(self._leave))
        self._note_errors()
        self.client.start()

    def _emit(self, frame: dict[str, Any]) -> None:
        if self.client is not None:
            self.client.put(frame)

    def _hello(self) -> dict[str, Any]:
        assert self.place is not None
        return {"type": "hello", **{k: v for k, v in vars(self.place).items() if k != "axes"}, "axes": self.place.axes}

    def _state(self) -> dict[str, Any]:
        """For a beat; runs in the client's thread."""
        recorder, now_s = self.recorder, time.perf_counter()
        recorder.rss_bytes = self._rss_bytes()
        quiet_s = max(0.0, now_s - recorder.progress_s)
        return {
            "iteration": recorder.iteration,
            "ops": recorder.ops,
            "phase": recorder.phase,
            "quiet_s": quiet_s,
            "protected_s": max(0.0, recorder.protected_until_s - now_s),
            **self._look_if_stuck(quiet_s, now_s),
        }

    def _look_if_stuck(self, quiet_s: float, now_s: float) -> dict[str, Any]:
        assert self.place is not None
        if quiet_s < self.place.hang_s / 2:
            self._look = {}
        elif not self._look or now_s - self._looked_s > _LOOK_S:
            self._looked_s = now_s
            self._look = {"where": stuck.where(), "collective": guard("flight recorder")(stuck.collective)()}
        return self._look

    def _rss_bytes(self) -> int:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * self._page_bytes

    def _note_errors(self) -> None:
        """An uncaught exception is the job's last word; it is printed as before."""
        before = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: Any) -> None:
            self._error = f"{kind.__name__}: {error}"[:1000]
            before(kind, error, trace)

        sys.excepthook = note

    def _leave(self) -> None:
        if self.client is not None:
            self.client.close({"type": "bye", "iteration": self.recorder.iteration, "error": self._error})

    def _forked(self) -> None:
        self.client = None


def _with_torch_rank(known: place.Place) -> place.Place:
    """Where no launcher says who we are (`mp.spawn`), the process group may."""
    distributed = sys.modules.get("torch.distributed")
    if place.has_rank() or distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return known
    rank, world = distributed.get_rank(), distributed.get_world_size()
    return place.Place(known.job, rank, world, rank, world, known.start, known.axes, known.hang_s)


watch = Watch()
"""Of this process."""
