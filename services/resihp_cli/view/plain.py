"""Progress as plain lines: for logs, pipes and `--headless`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from resihp_cli.view.tables import clock
from resihp_cli.watch import JobWatch
from resihp_gateway.models import EventView, IterationView
from resihp_gateway.wording import SECONDARY, describe, names


class PlainView:
    """Prints one line per event and about one line per second of training."""

    def __init__(
        self,
        watch: JobWatch,
        out: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = 1.0,
    ) -> None:
        self._watch = watch
        self._out = out or sys.stdout
        self._clock = clock
        self._every_s = every_s
        self._last_line_s = -every_s

    def note(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def on_event(self, event: EventView) -> None:
        if event.name not in SECONDARY:
            self.note(f"  {clock(event.occurred_at)}  {describe(event, names(self._watch.devices))}")

    def on_iterations(self, new: list[IterationView]) -> None:
        job, now = self._watch.job, self._clock()
        last = new[-1]
        total = job.iterations if job else 0
        if now - self._last_line_s < self._every_s and last.iteration != total:
            return
        self._last_line_s = now
        loss = "-" if last.loss is None else f"{last.loss:.4f}"
        rate = f"{last.tokens / last.step_s:,.0f} tok/s" if last.step_s else "-"
        step = f"{last.step_s * 1000:.0f} ms" if last.step_s else "-"
        self.note(f"iteration {last.iteration:>4}/{total}  epoch {last.epoch}  loss {loss}  step {step}  {rate}")

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass
