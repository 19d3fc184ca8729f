"""Who takes part in which epoch. Pure: facts in, the order to give out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_BROKEN = 3
"""Epochs in a row that broke although nobody died: the network, not a rank, is at fault."""


@dataclass(frozen=True)
class Epoch:
    """Of the job: its number, and the ranks that are to take part."""

    number: int
    members: tuple[int, ...]


class Members:
    """All ranks of one job. `epoch` is the newest order; None until all living ranks have said hello.

    >>> members = Members(range(3))
    >>> for rank in range(3): members.hello(rank)
    >>> members.epoch
    Epoch(number=1, members=(0, 1, 2))
    >>> members.gone(1); members.epoch
    Epoch(number=2, members=(0, 2))
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.alive = set(ranks)
        self.lost: list[int] = []
        """In the order of their ends."""
        self.epoch: Epoch | None = None
        self.is_leaving = False
        """All were done at the same time: whoever ends from now on has finished."""
        self._here: set[int] = set()
        self._done: set[int] = set()
        self._num_broken = 0

    @property
    def has_joined(self) -> bool:
        """Whether any rank uses `resihp_attach.ddp` at all."""
        return bool(self._here)

    def hello(self, rank: int) -> None:
        """The rank is ready for its first epoch."""
        self._here.add(rank)
        if self.epoch is None:
            self._begin()

    def gone(self, rank: int) -> None:
        """Its process has ended before it was allowed to leave."""
        self.alive.discard(rank)
        self.lost.append(rank)
        self._num_broken = 0
        if self._here:
            self._begin()

    def broken(self, epoch: int) -> bool:
        """A member of the epoch could not communicate, and nobody has died. False if that was once too often."""
        if self.epoch is None or epoch != self.epoch.number or self.is_leaving:
            return True  # old news
        self._num_broken += 1
        self._begin()
        return self._num_broken <= MAX_BROKEN

    def resumed(self, epoch: int) -> bool:
        """A step of the epoch was committed. True for the news of the newest epoch."""
        is_newest = self.epoch is not None and epoch == self.epoch.number
        if is_newest:
            self._num_broken = 0
        return is_newest

    def done(self, rank: int, epoch: int) -> None:
        """The rank has no more steps to take, unless it is needed in another epoch."""
        if self.epoch is None or epoch != self.epoch.number:
            return
        self._done.add(rank)
        self.is_leaving = self.is_leaving or self.alive <= self._done

    def _begin(self) -> None:
        self._done.clear()
        if self.is_leaving or not self.alive or not self.alive <= self._here:
            return
        number = 1 if self.epoch is None else self.epoch.number + 1
        self.epoch = Epoch(number, tuple(sorted(self.alive)))
