"""A batch sampler whose ranks draw unequal parts of one global batch.

speeds = Speeds(world, every=20)
sampler = BalancedBatchSampler(len(dataset), rows=16, rank=rank, speeds=speeds, seed=0)
loader = DataLoader(dataset, batch_sampler=sampler)
for batch in loader:
    ...
    optimizer.step()
    speeds.observe(compute_s, rows=len(batch))     # all ranks, every iteration
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from resihp_attach.balance.rows import share_rows

Gather = Callable[[float], Sequence[float]]
"""A number of every rank, in the order of ranks: an all-gather of the data-parallel group."""

TOLERANCE = 0.1
"""Speeds closer to the fastest rank than this count as equal: noise moves no rows."""


class Speeds:
    """What all ranks have agreed on about each other's speed.

    `observe` gathers once in `every` calls, at the same call on every rank; in between it costs nothing.
    """

    def __init__(self, world: int, gather: Gather, *, every: int = 20) -> None:
        self._gather, self._every = gather, every
        self._seconds: list[float] = []
        self.relative: tuple[float, ...] = (1.0,) * world
        """To the fastest rank."""

    def observe(self, compute_s: float, rows: int) -> None:
        """One iteration of this rank: seconds of its own compute (no waits), for so many rows."""
        self._seconds.append(compute_s / rows)
        if len(self._seconds) < self._every:
            return
        per_row, self._seconds = median(self._seconds), []
        known = [float(s) for s in self._gather(per_row)]
        fastest = min(known)
        speeds = [fastest / s if s > 0 else 1.0 for s in known]
        self.relative = tuple(1.0 if p > 1.0 - TOLERANCE else p for p in speeds)


class BalancedBatchSampler:
    """Indices of this rank's rows, one list per micro-batch. All ranks together draw each sample of an epoch once.

    The order of samples is a function of (seed, epoch) alone; speeds only decide who draws which of them. The last
    samples of an epoch that fill no global micro-batch are left out.
    """

    def __init__(
        self, num_samples: int, *, rows: int, rank: int, speeds: Speeds, seed: int = 0, shuffle: bool = True
    ) -> None:
        """`rows`: of one micro-batch over all ranks. Raises ValueError if that is less than one per rank."""
        share_rows(rows, speeds.relative)
        self._num_samples, self._rows, self._rank, self._speeds = num_samples, rows, rank, speeds
        self._seed, self._shuffle = seed, shuffle
        self.epoch = 0
        self.drawn = 0
        """Rows of this rank's newest micro-batch."""

    def set_epoch(self, epoch: int) -> None:
        """As of PyTorch's `DistributedSampler`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._num_samples // self._rows

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self._num_samples))
        if self._shuffle:
            random.Random(f"{self._seed}/{self.epoch}").shuffle(order)
        for micro_batch in range(len(self)):
            shares = share_rows(self._rows, self._speeds.relative)
            first = micro_batch * self._rows + sum(shares[: self._rank])
            self.drawn = shares[self._rank]
            yield order[first : first + self.drawn]
