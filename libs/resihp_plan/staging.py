"""Seconds of one replica whose micro-batches are unequal: the order of `orders`, run with estimated times.

For comparing many divisions of one batch quickly: without transfers, and with a stage as one line. `simulate` of the
same program differs by no more than that (tested).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

from resihp_plan.operation import OpKind
from resihp_plan.orders import order
from resihp_plan.plan import Schedule

_HALVES = (OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)
Step = tuple[int, OpKind, int]
"""(stage, kind, micro-batch)."""


def staged_s(schedule: Schedule, unit_s: Sequence[Sequence[float]], backward_ratio: float) -> float:
    """Until the last operation is over. `unit_s`: [stage][micro-batch], forward and backward together.

    >>> staged_s(Schedule.ONE_F_ONE_B, [[3.0] * 4] * 3, 2.0)  # (M + P - 1) * (f + b)
    18.0
    """
    num_stages, count = len(unit_s), len(unit_s[0])
    forward = 1.0 / (1.0 + backward_ratio)
    part = {OpKind.FORWARD: forward, OpKind.BACKWARD: 1.0 - forward, **dict.fromkeys(_HALVES, (1.0 - forward) / 2)}
    down = [[0.0] * count for _ in range(num_stages + 1)]  # forwards over, by stage + 1
    up = [[0.0] * count for _ in range(num_stages + 1)]  # backwards over
    clock = [0.0] * num_stages
    for s, kind, m in _sequence(schedule, num_stages, count):
        seconds = part[kind] * unit_s[s][m]
        if kind is OpKind.FORWARD:
            down[s + 1][m] = clock[s] = max(clock[s], down[s][m]) + seconds
        elif kind is OpKind.BACKWARD_WEIGHT:
            clock[s] += seconds
        else:
            up[s][m] = clock[s] = max(clock[s], up[s + 1][m]) + seconds
    return max(clock)


@lru_cache(maxsize=128)
def _sequence(schedule: Schedule, num_stages: int, count: int) -> tuple[Step, ...]:
    """All computations of a replica, each after those for which it waits."""
    lanes = [list(order(schedule, num_stages, s, count)) for s in range(num_stages)]
    position = [0] * num_stages
    done: set[Step] = set()
    found: list[Step] = []
    while len(found) < num_stages * len(lanes[0]):
        for s, lane in enumerate(lanes):
            for kind, m in itertools.islice(lane, position[s], None):
                neighbour = {OpKind.FORWARD: s - 1, OpKind.BACKWARD_WEIGHT: -1}.get(kind, s + 1)
                if 0 <= neighbour < num_stages and (neighbour, kind, m) not in done:
                    break
                done.add((s, kind, m))
                found.append((s, kind, m))
                position[s] += 1
    return tuple(found)
