"""Programs: for every rank the ordered operations of one iteration; a pure function of the plan (design: section 5).

One representation has three users: the trainer executes it, the detector predicts with it, the planner simulates it.
Replicas without migrated units follow the closed form of their schedule (`orders`); the others a list schedule
(`list_schedule`) with the same bounds on what is in flight. `check.check_program` proves either before use.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from resihp_plan.edges import Place
from resihp_plan.list_schedule import list_schedule
from resihp_plan.operation import (
    MATCHING_SEND,
    Op,
    OpKind,
    Program,
    unit_ops,
)
from resihp_plan.orders import order
from resihp_plan.plan import ParallelPlan

__all__ = ["MATCHING_SEND", "Op", "OpKind", "Program", "program"]


def program(plan: ParallelPlan) -> Program:
    """The program of a valid plan under its schedule; checked by `check_program` before use."""
    ops: dict[int, tuple[Op, ...]] = dict.fromkeys(plan.world, ())
    mixed_ops = list_schedule(plan, plan.mixed) if plan.mixed else {}
    for a, replica in enumerate(plan.replicas):
        for s, stage in enumerate(replica.stages):
            shared = mixed_ops[Place(a, s)] if a in plan.mixed else tuple(_closed_form(plan, a, s))
            ops.update(dict.fromkeys(stage.ranks, shared))
    return Program(MappingProxyType(ops))


def _closed_form(plan: ParallelPlan, a: int, s: int) -> Iterator[Op]:
    replica = plan.replicas[a]
    for kind, m in order(plan.schedule, len(replica.stages), s, replica.num_micro_batches):
        yield from unit_ops(plan, a, s, m, kind)
