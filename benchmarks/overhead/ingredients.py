"""What watches a healthy iteration, in parts that can be switched on one by one, and a ledger of what each costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

from resihp_trainer.install import ActiveEpoch
from resihp_trainer.interpreter import Interpreter

T = TypeVar("T")


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


ALL = frozenset(Part)


@dataclass(frozen=True)
class Variant:
    """Which ingredients are on in a block of iterations."""

    name: str
    parts: frozenset[Part]


BARE, WHOLE = Variant("bare", frozenset()), Variant("all", ALL)
ALONE = tuple(Variant(str(p), frozenset({p})) for p in Part)


@dataclass
class Ledger:
    """Processor seconds of the training thread inside each ingredient, less those of others inside it."""

    spent_s: dict[str, float] = field(default_factory=dict)
    _inner_s: list[float] = field(default_factory=list)
    """Of every open entry, what was put down inside it."""

    @contextmanager
    def open(self, part: Part) -> Iterator[None]:
        """Put down what happens inside."""
        start = time.thread_time()
        self._inner_s.append(0.0)
        try:
            yield
        finally:
            whole_s = time.thread_time() - start
            own_s = whole_s - self._inner_s.pop()
            self.spent_s[part] = self.spent_s.get(part, 0.0) + own_s
            if self._inner_s:
                self._inner_s[-1] += whole_s

    def charged(self, part: Part, call: Callable[..., T]) -> Callable[..., T]:
        """`call`, with what it takes put down to `part`."""

        def charging(*args: Any, **kwargs: Any) -> T:
            with self.open(part):
                return call(*args, **kwargs)

        return charging

    def take(self) -> dict[str, float]:
        """What was put down since the last call."""
        spent, self.spent_s = self.spent_s, {}
        return spent


class _Untimed(Interpreter):
    """Does not look at the clock."""

    def _begin(self) -> Any:
        return None

    def _note(self, *_: Any) -> None:
        return None


def with_parts(active: ActiveEpoch, parts: frozenset[Part], poll: Callable[[], None]) -> ActiveEpoch:
    """The epoch with an interpreter that times, shows progress and goes on with copies only if `parts` says so."""
    if active.interpreter is None or parts == ALL:
        return active
    given = {f.name: getattr(active.interpreter, f.name) for f in fields(Interpreter)}
    if Part.TIMING in parts:
        return active
    operation = poll if Part.SNAPSHOTS in parts else _nothing
    return replace(active, interpreter=_Untimed(**{**given, "operation": operation}))


def _nothing() -> None:
    return None
