"""Whole micro-batches, or single documents, to replicas: each is done with its part at about the same time."""

from __future__ import annotations

from collections.abc import Sequence

from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel, Linear
from resihp_plan.plan import ParallelPlan
from resihp_plan.workload import MicroBatchWork


def deal(
    work: Sequence[MicroBatchWork], plan: ParallelPlan, cost: CostModel, speed: Health | None = None
) -> tuple[tuple[int, ...], ...]:
    """[replica] -> indices of its micro-batches, ascending; as many as the plan gives it.

    Heaviest first, each to the replica that would be done first with it and with its average share of what is left.
    Raises ValueError if the numbers differ.
    """
    if len(work) != plan.num_micro_batches:
        raise ValueError(f"{len(work)} micro-batches for a plan of {plan.num_micro_batches}")
    rest = MicroBatchWork(sum(w.tokens for w in work), sum(w.sum_sq_len for w in work))
    pace = [cost.pace_line(replica, rest, speed) for replica in plan.replicas]
    load = [0.0] * len(pace)
    dealt: list[list[int]] = [[] for _ in pace]
    order = sorted(range(len(work)), key=lambda m: (-cost.layer_s(work[m]), m))
    for n, m in enumerate(order):
        rest = MicroBatchWork(rest.tokens - work[m].tokens, rest.sum_sq_len - work[m].sum_sq_len)
        to_come = max(1, len(order) - n - 1)
        after: dict[int, float] = {}
        for a, replica in enumerate(plan.replicas):
            slots = replica.num_micro_batches - len(dealt[a]) - 1
            if slots >= 0:
                # The slots that stay open are filled with average ones of the rest, sooner or later.
                after[a] = load[a] + pace[a].seconds(work[m]) + slots * pace[a].seconds(rest) / to_come
        a = min(after, key=lambda a: (after[a], a))
        dealt[a].append(m)
        load[a] += pace[a].seconds(work[m])
    return tuple(tuple(sorted(chosen)) for chosen in dealt)


def share(
    lengths: Sequence[int], costs: Sequence[float], paces: Sequence[Linear], rooms: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    """[replica] -> indices of its documents, ascending, at most `rooms[replica]` tokens; None if one finds no room.

    Most expensive first (`costs`), each to the replica that would be done first with it and with the rest that fills
    its room in proportion: so long documents go where time is, and who is slow gets tokens that cost little.

    >>> share([8, 8, 2, 2, 2, 2], [64, 64, 4, 4, 4, 4], [Linear(0, 1, 1), Linear(0, 2, 2)], [20, 10])
    ((0, 1), (2, 3, 4, 5))
    """
    left = list(rooms)
    load = [0.0] * len(paces)
    shared: list[list[int]] = [[] for _ in paces]
    tokens, squares = sum(lengths), sum(n * n for n in lengths)
    for i in sorted(range(len(lengths)), key=lambda i: (-costs[i], i)):
        n = lengths[i]
        tokens, squares = tokens - n, squares - n * n
        room = max(1, sum(left) - n)
        best: tuple[float, int] | None = None
        for a, pace in enumerate(paces):
            if left[a] >= n:
                filled = (left[a] - n) / room
                rest = pace.per_token * tokens + pace.per_square * squares
                after = load[a] + pace.per_token * n + pace.per_square * n * n + filled * rest
                if best is None or (after, a) < best:
                    best = (after, a)
        if best is None:
            return None
        a = best[1]
        shared[a].append(i)
        load[a] += paces[a].per_token * n + paces[a].per_square * n * n
        left[a] -= n
    return tuple(tuple(sorted(chosen)) for chosen in shared)
