"""What watches a healthy iteration, in parts, and a ledger of what each costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from statistics import median
from typing import Any, TypeVar

from resihp_trainer.install import ActiveEpoch
from resihp_trainer.interpreter import Interpreter

T = TypeVar("T")
ENTRIES = " entries"
_EMPTY_ENTRIES = 1001


class Part(StrEnum):
    """An ingredient. The vote's all-reduce exists in every iteration: it carries the norm for clipping."""

    VOTE = "vote"
    """Proof of samples, agreement on epochs, copies and probes, beside the norm."""
    TIMING = "timing"
    """Clocks around every unit, and the progress page."""
    REPORT = "report"
    """The iteration's report to the agent: model, bytes, writer thread."""
    FINGERPRINTS = "fingerprints"
    SNAPSHOTS = "snapshots"
    CLOCKS = "clocks"
    """None of them: entries around nothing, between units that emptied the caches: what the ledger itself takes."""


class Variant(StrEnum):
    """Whether the ingredients are on in a block of iterations."""

    BARE = "bare"
    WHOLE = "all"


@dataclass
class Ledger:
    """Processor seconds of the training thread inside each ingredient, less those of others inside it and less what the
    ledger's own clocks take of an empty entry in a loop. (`Part.CLOCKS` tells what they take beyond, between units.)"""

    spent_s: dict[str, float] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    _inner_s: list[float] = field(default_factory=list)
    """Of every open entry, what was put down inside it."""

    empty_s: float = 0.0
    is_open: bool = True
    """Whether entries are made: the clocks disturb what they measure, so blocks that are compared have none."""

    def calibrate(self) -> None:
        """Learn what an empty entry seems to take (with warm caches, so less than it does between units)."""
        empty = self.charged(Part.VOTE, _nothing)
        seen = []
        for _ in range(_EMPTY_ENTRIES):
            empty()
            seen.append(self.take()[Part.VOTE])
        self.empty_s = median(seen)

    def charged(self, part: Part, call: Callable[..., T]) -> Callable[..., T]:
        """`call`, with what it takes put down to `part`."""
        clock, inner_s = time.thread_time, self._inner_s

        def charging(*args: Any, **kwargs: Any) -> T:
            if not self.is_open:
                return call(*args, **kwargs)
            inner_s.append(0.0)
            clock()  # so that the next look finds its way in the caches
            start = clock()
            try:
                return call(*args, **kwargs)
            finally:
                whole_s = clock() - start
                own_s = max(0.0, whole_s - inner_s.pop() - self.empty_s)
                self.spent_s[part] = self.spent_s.get(part, 0.0) + own_s
                self.entries[part] = self.entries.get(part, 0) + 1
                if inner_s:
                    inner_s[-1] += whole_s

        return charging

    def take(self) -> dict[str, float]:
        """What was put down since the last call: seconds by part, and by part + `ENTRIES` how often."""
        found = {**self.spent_s, **{part + ENTRIES: float(n) for part, n in self.entries.items()}}
        self.spent_s, self.entries = {}, {}
        return found


class _Untimed(Interpreter):
    """Does not look at the clock."""

    def _begin(self) -> Any:
        return None

    def _note(self, *_: Any) -> None:
        return None


def unwatched(active: ActiveEpoch, ledger: Ledger) -> ActiveEpoch:
    """The epoch with an interpreter that neither times, nor shows progress, nor goes on with copies. While the ledger
    is open, an entry around nothing follows each unit."""
    assert active.interpreter is not None
    given = {f.name: getattr(active.interpreter, f.name) for f in fields(Interpreter)}
    operation = ledger.charged(Part.CLOCKS, _nothing) if ledger.is_open else _nothing
    return replace(active, interpreter=_Untimed(**{**given, "operation": operation}))


def _nothing() -> None:
    return None
