"""Programs: for every rank the ordered operations of one iteration; a pure function of the plan (design: section 5).

One representation has three users: the trainer executes it, the detector predicts with it, the planner simulates it.
Replicas without migrated units follow the closed form of their schedule; the others a list schedule (`list_schedule`)
with the same bounds on what is in flight. `check.check_program` proves either before use.
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
    backward_ops,
    forward_ops,
    weight_op,
)
from resihp_plan.plan import ParallelPlan, Schedule

__all__ = ["MATCHING_SEND", "Op", "OpKind", "Program", "one_f_one_b", "program", "zb_h1"]


def program(plan: ParallelPlan) -> Program:
    """The program of a valid plan under its schedule; checked by `check_program` before use."""
    ops: dict[int, tuple[Op, ...]] = dict.fromkeys(plan.world, ())
    mixed = {r for m in plan.migrations for r in (m.replica, m.executor)}
    mixed_ops = list_schedule(plan, mixed) if mixed else {}
    closed_form = zb_h1 if plan.schedule is Schedule.ZB_H1 else one_f_one_b
    for a, replica in enumerate(plan.replicas):
        for s, stage in enumerate(replica.stages):
            shared = mixed_ops[Place(a, s)] if a in mixed else tuple(closed_form(plan, a, s))
            ops.update(dict.fromkeys(stage.ranks, shared))
    return Program(MappingProxyType(ops))


def one_f_one_b(plan: ParallelPlan, a: int, s: int) -> Iterator[Op]:
    """1F1B (PipeDream-flush): as many forwards as stages follow, then one forward and one backward in turn."""
    num_stages, count = len(plan.replicas[a].stages), plan.replicas[a].num_micro_batches
    warm_up = min(num_stages - s - 1, count)
    for m in range(warm_up):
        yield from forward_ops(plan, a, s, m)
    for m in range(count):
        if m + warm_up < count:
            yield from forward_ops(plan, a, s, m + warm_up)
        yield from backward_ops(plan, a, s, m, OpKind.BACKWARD)


def zb_h1(plan: ParallelPlan, a: int, s: int) -> Iterator[Op]:
    """ZB-H1 (Qi et al. 2023, section 2.1): the order of 1F1B with weight gradients `s` micro-batches late.

    Bubble (P - 1)(F + B - W) instead of (P - 1)(F + B + W). The late halves keep activations, so that every stage holds
    those of up to P micro-batches: what the first stage holds under 1F1B.
    """
    num_stages, count = len(plan.replicas[a].stages), plan.replicas[a].num_micro_batches
    warm_up = min(num_stages - s - 1, count)
    for m in range(warm_up):
        yield from forward_ops(plan, a, s, m)
    late = 0  # the next micro-batch whose weight half is open
    for m in range(count):
        steady = m + warm_up < count
        if steady:
            yield from forward_ops(plan, a, s, m + warm_up)
        yield from backward_ops(plan, a, s, m, OpKind.BACKWARD_INPUT)
        if m - late >= s or not steady:  # in the cool-down they fill the waits for gradients
            yield weight_op(plan, a, s, late)
            late += 1
    for m in range(late, count):
        yield weight_op(plan, a, s, m)
