"""Closed-form schedules: in which order a stage computes, when replicas do not exchange work.

A pure function of numbers; `program` adds the transfers, the planner's `timeline` the dependencies.
"""

from __future__ import annotations

from collections.abc import Iterator

from resihp_plan.operation import OpKind
from resihp_plan.plan import Schedule

Computation = tuple[OpKind, int]
"""What is done with which micro-batch."""


def order(schedule: Schedule, num_stages: int, stage: int, count: int) -> Iterator[Computation]:
    """The computations of a stage for `count` micro-batches.

    >>> [f"{kind[0]}{m}" for kind, m in order(Schedule.ONE_F_ONE_B, 2, 0, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    return (
        _zb_h1(num_stages, stage, count)
        if schedule.splits_backward
        else _one_f_one_b(schedule, num_stages, stage, count)
    )


def _one_f_one_b(schedule: Schedule, num_stages: int, stage: int, count: int) -> Iterator[Computation]:
    """1F1B (PipeDream-flush): as many forwards as stages follow (more with slack), then one forward and one backward in
    turn."""
    warm_up = min(schedule.warm_up(num_stages, stage), count)
    for m in range(warm_up):
        yield OpKind.FORWARD, m
    for m in range(count):
        if m + warm_up < count:
            yield OpKind.FORWARD, m + warm_up
        yield OpKind.BACKWARD, m


def _zb_h1(num_stages: int, stage: int, count: int) -> Iterator[Computation]:
    """ZB-H1 (Qi et al. 2023, section 2.1): the order of 1F1B with weight gradients `stage` micro-batches late.

    Bubble (P - 1)(F + B - W) instead of (P - 1)(F + B + W). The late halves keep activations, so that every stage holds
    those of up to P micro-batches: what the first stage holds under 1F1B.
    """
    warm_up = min(num_stages - stage - 1, count)
    for m in range(warm_up):
        yield OpKind.FORWARD, m
    late = 0  # the next micro-batch whose weight half is open
    for m in range(count):
        steady = m + warm_up < count
        if steady:
            yield OpKind.FORWARD, m + warm_up
        yield OpKind.BACKWARD_INPUT, m
        if m - late >= stage or not steady:  # in the cool-down they fill the waits for gradients
            yield OpKind.BACKWARD_WEIGHT, late
            late += 1
    for m in range(late, count):
        yield OpKind.BACKWARD_WEIGHT, m
