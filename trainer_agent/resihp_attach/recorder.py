"""What one rank does in one iteration: compute apart from waiting, per micro-batch. Pure; times come from a clock.

Compute of a backward pass = its duration up to its last gradient - waits inside it. What comes after the last gradient,
the *tail*, is spent in the reducer's own wait for its peers. Without that, all ranks of a data-parallel group look
equally slow, because everybody waits for the slowest one inside the backward pass.

Time that the training thread was ready to run and had no processor is no compute either: on a crowded host that is what
differs between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from resihp_attach.lengths import NOTHING, Work


class _Mark(NamedTuple):
    """A moment of the training thread."""

    at_s: float
    waited_s: float
    """For peers, in this iteration."""
    held_s: float
    """For a processor, outside waits for peers, since the process began."""

    def compute_since(self, earlier: _Mark) -> float:
        waited_s, held_s = self.waited_s - earlier.waited_s, self.held_s - earlier.held_s
        return max(0.0, self.at_s - earlier.at_s - waited_s - max(0.0, held_s))


@dataclass
class _Iteration:
    begun_s: float
    works: list[Work] = field(default_factory=list)
    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    wait_s: float = 0.0
    """Python waits and tails."""


class Recorder:
    """Called by hooks from the training thread; `emit` gets one frame per optimizer step."""

    def __init__(
        self,
        clock: Callable[[], float],
        emit: Callable[[dict[str, Any]], None],
        delay: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`delay`: seconds that the training thread was ready and had no processor, since any moment."""
        self._clock, self._emit, self._delay = clock, emit, delay
        self._wait_delay_s = 0.0
        self.iteration = 0
        """Optimizer steps that are done."""
        self.ops = 0
        """Grows with everything that happens: the sign of progress."""
        self.phase = ""
        self.progress_s = clock()
        self.protected_until_s = 0.0
        self.rss_bytes = 0
        self.loss: float | None = None
        self.compute_s = 0.0
        """Of the newest iteration that is done, without waits."""
        self.declared: Work | None = None
        """What the next micro-batch holds, if somebody has said so."""
        self._now = _Iteration(clock())
        self._forward: _Mark | None = None
        self._backward: _Mark | None = None
        self._depth = [0, 0]
        self._gradient: _Mark | None = None
        """When the last gradient of the pass was there."""

    # --- passes ---------------------------------------------------------------------------------------------------

    def forward_begins(self, work: Work = NOTHING) -> None:
        """Of the whole model, with gradients. Nested calls count once."""
        self._depth[0] += 1
        if self._depth[0] == 1 and not self.phase:
            self._forward = self._mark()
            if self.iteration == 0:
                self._first_pass()
            self._now.works.append(self._known(work))

    def forward_ends(self) -> None:
        self._depth[0] = max(0, self._depth[0] - 1)
        span, self._forward = (self._forward, None) if self._depth[0] == 0 else (None, self._forward)
        if span is not None:
            self._now.forward_s.append(self._mark().compute_since(span))

    def backward_begins(self) -> bool:
        """True for the outermost pass of those that count: its `gradients_done` is wanted."""
        self._depth[1] += 1
        if self._depth[1] > 1 or self.phase:
            return False
        self._gradient = None
        self._backward = self._mark()
        return True

    def backward_ends(self) -> None:
        self._depth[1] = max(0, self._depth[1] - 1)
        span, self._backward = (self._backward, None) if self._depth[1] == 0 else (None, self._backward)
        if span is not None:
            self._tick()
            last = self._gradient or self._mark()
            self._now.backward_s.append(last.compute_since(span))
            tail_s = self.progress_s - last.at_s - (self._now.wait_s - last.waited_s)
            self._now.wait_s += max(0.0, tail_s)

    def gradients_done(self) -> None:
        """Every gradient of the pass is there; what follows is the tail."""
        self._gradient = self._mark()

    def wait_begins(self) -> _Mark:
        """For other ranks, wherever in the iteration; hand the result to `wait_ends`."""
        return self._mark()

    def wait_ends(self, begun: _Mark) -> None:
        end = self._mark()
        self._wait_delay_s += end.held_s - begun.held_s
        self._now.wait_s += end.at_s - begun.at_s - (end.waited_s - begun.waited_s)  # a wait inside counts once

    def _mark(self) -> _Mark:
        """Now; a sign of progress, too."""
        self._tick()
        return _Mark(self.progress_s, self._now.wait_s, self._delay() - self._wait_delay_s)

    # --- iterations -----------------------------------------------------------------------------------------------

    def step_done(self) -> None:
        """The optimizer has stepped: the iteration is over. A step without a pass before it is none (a second
        optimizer, a schedule-free wrapper)."""
        done = self._now
        if not (done.backward_s or done.forward_s):
            return
        self._tick()
        now_s = self.progress_s
        self.iteration += 1
        self.compute_s = sum(done.forward_s) + sum(done.backward_s)
        self._now = _Iteration(now_s)
        self._depth, self._forward, self._backward = [0, 0], None, None  # a pass that was left by an exception
        self._emit(self._frame(done, now_s))
        self.loss = None

    def replace_newest(self, work: Work) -> None:
        """What the micro-batch that has begun holds: known only once its data were read."""
        if self._now.works:
            self._now.works[-1] = work

    def _known(self, guessed: Work) -> Work:
        work, self.declared = self.declared or guessed, None
        return work

    @contextmanager
    def unit(self, work: Work | None) -> Iterator[None]:
        """One micro-batch of a loop that says so itself. If nobody sees the model being called inside, everything but
        backward passes and waits counts as its forward pass."""
        self.declared = work
        now, begun = self._now, self._mark()
        num_seen, backward_s = len(now.forward_s), sum(now.backward_s)
        try:
            yield
        finally:
            self._tick()
            if now is self._now and len(now.forward_s) == num_seen:
                now.works.append(self._known(NOTHING))
                rest_s = self._mark().compute_since(begun) - (sum(now.backward_s) - backward_s)
                now.forward_s.append(max(0.0, rest_s))

    def _frame(self, done: _Iteration, now_s: float) -> dict[str, Any]:
        num_units = max(1, len(done.forward_s))
        works = (done.works + [NOTHING] * num_units)[:num_units]
        forward_s = done.forward_s or [0.0]
        backward_s = done.backward_s
        if len(backward_s) != num_units:  # a chunked loss, or a pass without a model call: only the sum is known
            backward_s = [sum(backward_s) / num_units] * num_units
        return {
            "type": "iteration",
            "iteration": self.iteration,
            "step_s": now_s - done.begun_s,
            "unit_forward_s": forward_s,
            "unit_backward_s": backward_s,
            "unit_tokens": [work.tokens for work in works],
            "unit_sum_sq_len": [work.sum_sq_len for work in works],
            "lengths_source": works[0].source,
            "wait_s": done.wait_s,
            "phases_s": done.phases_s,
            "rss_bytes": self.rss_bytes,
            "loss": self.loss,
        }

    # --- phases ---------------------------------------------------------------------------------------------------

    @contextmanager
    def in_phase(self, name: str, max_s: float = 0.0) -> Iterator[None]:
        """Work besides training. Its passes are no micro-batches; an iteration with it is not judged as slow; for
        `max_s` it may show no progress."""
        outer, begun_s = self.phase, self._clock()
        self.phase, self.protected_until_s = name, max(self.protected_until_s, begun_s + max_s)
        self._tick()
        try:
            yield
        finally:
            self.phase, self.protected_until_s = outer, 0.0
            self._tick()
            if not outer:
                self.spent(name, self._clock() - begun_s)

    def spent(self, phase: str, seconds: float) -> None:
        """Work besides training took this long."""
        self._now.phases_s[phase] = self._now.phases_s.get(phase, 0.0) + seconds

    def _first_pass(self) -> None:
        """What came before training (imports, data, the first connection) belongs to no iteration."""
        if not (self._now.forward_s or self._now.backward_s):
            self._now.begun_s = self.progress_s

    def _tick(self) -> None:
        self.ops += 1
        self.progress_s = self._clock()
