"""Seconds of replicas that execute units of each other: the list schedule's order, run with real times.

Equal to `simulate` of the same program (tested), without making its operations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from resihp_plan.edges import Place
from resihp_plan.list_schedule import list_order
from resihp_plan.operation import OpKind
from resihp_plan.plan import ParallelPlan

Seconds = Callable[[Place], Mapping[OpKind, float]]
"""What each kind of operation takes at a place; asked only for places that execute something."""
Transfer = Callable[[Place, Place], float]


def exchange_s(plan: ParallelPlan, replicas: Collection[int], seconds: Seconds, transfer_s: Transfer) -> float:
    """Until the last operation of `replicas` is over; they exchange units among themselves only."""
    clock: dict[Place, float] = {}
    known: dict[Place, Mapping[OpKind, float]] = {}
    edges: dict[tuple[Place, Place], float] = {}
    forward: dict[tuple[int, int, int], float] = {}
    backward: dict[tuple[int, int, int], float] = {}
    for t in list_order(plan, replicas):
        here, a, m = t.place, t.replica, t.micro_batch
        if here not in known:
            known[here] = seconds(here)
        start = clock.get(here, 0.0)
        if t.kind is not OpKind.BACKWARD_WEIGHT:
            is_forward = t.kind is OpKind.FORWARD
            done, stage = (forward, here.stage - 1) if is_forward else (backward, here.stage + 1)
            arrived = done.get((a, stage, m))
            if arrived is not None:
                edge = (Place(plan.executor(a, stage, m), stage), here)
                if edge not in edges:
                    edges[edge] = transfer_s(*edge)
                start = max(start, arrived + edges[edge])
            (forward if is_forward else backward)[a, here.stage, m] = start + known[here][t.kind]
        clock[here] = start + known[here][t.kind]
    return max(clock.values(), default=0.0)
