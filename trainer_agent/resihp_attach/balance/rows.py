"""How many rows each rank gets. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def share_rows(num_rows: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Rows per rank, at least one each, so that the slowest rank (rows / speed) is as quick as it can be.

    Row by row to the rank that would be done first: the optimum for equal rows (a proof by exchange). Deterministic,
    so that all ranks come to the same answer. Raises ValueError for fewer rows than ranks, or speeds of 0 or less.

    >>> share_rows(16, [1.0, 1.0, 0.5, 1.0])  # even: 4 / 0.5 = 8 units of time; now 5
    (5, 5, 2, 4)
    """
    if num_rows < len(speeds):
        raise ValueError(f"{num_rows} rows cannot give each of {len(speeds)} ranks one")
    if min(speeds) <= 0:
        raise ValueError(f"speeds must be positive: {list(speeds)}")
    rows = [1] * len(speeds)
    queue = [(2 / speed, rank) for rank, speed in enumerate(speeds)]
    heapq.heapify(queue)
    for _ in range(num_rows - len(speeds)):
        _, rank = queue[0]
        rows[rank] += 1
        heapq.heapreplace(queue, ((rows[rank] + 1) / speeds[rank], rank))
    return tuple(rows)
