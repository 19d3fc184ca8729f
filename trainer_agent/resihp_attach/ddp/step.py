"""One step as the training loop sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from resihp_attach.ddp.errors import RankLost


@dataclass(frozen=True)
class Step:
    """A context: a rank that is lost inside ends it, and the next step of the loop is the same iteration again."""

    iteration: int
    """Counted from 1."""
    index: int
    """Of this rank among those that are alive: what a loop would otherwise call its rank."""
    world: int
    """How many are alive."""
    given_up: Callable[[], None]
    """Called when the step is left by `RankLost`."""

    def share(self, rows: int) -> slice:
        """This rank's part of `rows` rows: contiguous, sizes differ by one at most.

        >>> [Step(1, index, 3, lambda: None).share(16) for index in range(3)]
        [slice(0, 6, None), slice(6, 11, None), slice(11, 16, None)]
        """
        least, extra = divmod(rows, self.world)
        first = self.index * least + min(self.index, extra)
        return slice(first, first + least + (self.index < extra))

    def __enter__(self) -> Step:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, RankLost):
            return False
        self.given_up()
        return True
