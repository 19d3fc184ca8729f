"""Exact min-max division of equal pieces: layers over stages, micro-batches over replicas."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def level(
    fixed_s: Sequence[float],
    each_s: Sequence[float],
    total: int,
    *,
    least: int = 0,
    caps: Sequence[int] | None = None,
) -> tuple[int, ...] | None:
    """Counts with sum `total` that minimise the largest `fixed_s[i] + counts[i] * each_s[i]`, over those that get one.

    `least`: everybody gets at least so many; `caps`: at most so many. None if that is impossible. Optimal: no count of
    the continuous solution, rounded down, exceeds the optimum's, and from there the next piece always goes where it is
    over first; equal times go to the lower index.

    >>> level([0.0, 0.0, 0.0], [2.0, 1.0, 1.0], 10)
    (2, 4, 4)
    """
    n = len(each_s)
    if n == 0:
        return None if total else ()
    if n * least > total or (caps is not None and (sum(caps) < total or min(caps, default=0) < least)):
        return None
    counts = [least] * n
    if total > 4 * n:
        _raise_to_level(counts, fixed_s, each_s, total, least, caps)
    heap = [(fixed_s[i] + (counts[i] + 1) * each_s[i], i) for i in range(n) if caps is None or counts[i] < caps[i]]
    heapq.heapify(heap)
    for _ in range(total - sum(counts)):
        seconds, i = heap[0]
        counts[i] += 1
        if caps is not None and counts[i] >= caps[i]:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (seconds + each_s[i], i))
    return tuple(counts)


def _raise_to_level(
    counts: list[int],
    fixed_s: Sequence[float],
    each_s: Sequence[float],
    total: int,
    least: int,
    caps: Sequence[int] | None,
) -> None:
    """A start that is never too much: one below the continuous level of those that are to get more than the least."""
    more = set(range(len(counts)))
    while more:
        weight = sum(1.0 / each_s[i] for i in more)
        rest = total - least * (len(counts) - len(more))
        height = (rest + sum(fixed_s[i] / each_s[i] for i in more)) / weight
        low = {i for i in more if fixed_s[i] + least * each_s[i] >= height}
        if not low:
            break
        more -= low
    for i in more:
        start = int((height - fixed_s[i]) / each_s[i]) - 1
        counts[i] = max(least, start if caps is None else min(start, caps[i]))
