"""Pack documents into micro-batches with a token budget, levelling their predicted cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

Bins = list[list[int]]


def pack(lengths: Sequence[int], costs: Sequence[float], num_bins: int, capacity: int) -> tuple[tuple[int, ...], ...]:
    """Indices per bin (ascending), every index once, at most `capacity` length per bin; deterministic.

    Longest processing time first (Graham 1969) with capacity. Where that leaves an item without room: next fit in the
    given order, which is feasible for batches that were drawn that way, then swaps that level the cost.
    Raises ValueError with numbers if the items do not fit in order either.

    >>> pack([4, 3, 3, 2], [16, 9, 9, 4], 2, 8)
    ((0, 3), (1, 2))
    """
    bins = _longest_first(lengths, costs, num_bins, capacity)
    if bins is None:
        bins = _in_order(lengths, num_bins, capacity)
        _level(bins, lengths, costs, capacity)
    return tuple(tuple(sorted(b)) for b in bins)


def tapered(
    lengths: Sequence[int], costs: Sequence[float], num_bins: int, capacity: int, *, light: int, fill: float
) -> tuple[tuple[int, ...], ...] | None:
    """Like `pack`, with `light` bins of the shortest items, filled up to this part of their capacity: for the ends of a
    pipeline. None where the others have no room for what is left.

    >>> tapered([4, 3, 3, 2, 2], [16, 9, 9, 4, 4], 3, 8, light=1, fill=0.5)
    ((3, 4), (0,), (1, 2))
    """
    order = sorted(range(len(lengths)), key=lambda i: (costs[i], i))
    bins: Bins = [[] for _ in range(light)]
    room = [int(capacity * fill)] * light
    taken = 0
    for i in order:
        b = max(range(light), key=lambda b: (room[b], -b))
        if room[b] < lengths[i]:
            break
        bins[b].append(i)
        room[b] -= lengths[i]
        taken += 1
    rest = order[taken:]
    others = _longest_first([lengths[i] for i in rest], [costs[i] for i in rest], num_bins - light, capacity)
    return None if others is None else tuple(tuple(sorted(b)) for b in (*bins, *([rest[j] for j in b] for b in others)))


def _longest_first(lengths: Sequence[int], costs: Sequence[float], num_bins: int, capacity: int) -> Bins | None:
    bins: Bins = [[] for _ in range(num_bins)]
    room = [capacity] * num_bins
    load = [0.0] * num_bins
    for i in sorted(range(len(lengths)), key=lambda i: (-costs[i], i)):
        fitting = [b for b in range(num_bins) if room[b] >= lengths[i]]
        if not fitting:
            return None
        b = min(fitting, key=lambda b: (load[b], b))
        bins[b].append(i)
        room[b] -= lengths[i]
        load[b] += costs[i]
    return bins


def _in_order(lengths: Sequence[int], num_bins: int, capacity: int) -> Bins:
    bins: Bins = [[]]
    used = 0
    for i, length in enumerate(lengths):
        if used + length > capacity:
            bins.append([])
            used = 0
        bins[-1].append(i)
        used += length
    if len(bins) > num_bins:
        raise ValueError(
            f"{len(lengths)} documents with {sum(lengths)} tokens do not fit into {num_bins} micro-batches of "
            f"{capacity} tokens: packed in order they need {len(bins)}"
        )
    return bins + [[] for _ in range(num_bins - len(bins))]


def _level(bins: Bins, lengths: Sequence[int], costs: Sequence[float], capacity: int) -> None:
    """Move or swap between the heaviest and another bin while that lowers the heavier of the two. In place.

    Each step lowers the heaviest load strictly or the number of bins that have it, so it ends; the bound on the number
    of steps keeps large batches cheap.
    """
    load = [sum(costs[i] for i in b) for b in bins]
    room = [capacity - sum(lengths[i] for i in b) for b in bins]
    for _ in range(4 * len(bins)):
        heavy = max(range(len(bins)), key=lambda b: (load[b], -b))
        best: tuple[float, int, int, int | None] | None = None
        for light in range(len(bins)):
            if load[light] >= load[heavy]:
                continue
            for give, take in product(bins[heavy], [None, *bins[light]]):
                shift = costs[give] - (0.0 if take is None else costs[take])
                grow = lengths[give] - (0 if take is None else lengths[take])
                after = max(load[heavy] - shift, load[light] + shift)
                if shift > 0 and grow <= room[light] and after < load[heavy] and (best is None or after < best[0]):
                    best = (after, light, give, take)
        if best is None:
            return
        _, light, given, taken = best
        _exchange(bins, heavy, light, given, taken)
        for b in (heavy, light):
            load[b] = sum(costs[i] for i in bins[b])
            room[b] = capacity - sum(lengths[i] for i in bins[b])


def _exchange(bins: Bins, heavy: int, light: int, give: int, take: int | None) -> None:
    bins[heavy].remove(give)
    bins[light].append(give)
    if take is not None:
        bins[light].remove(take)
        bins[heavy].append(take)
