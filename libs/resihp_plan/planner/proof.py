"""A chosen plan is proven before anybody hears of it."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from resihp_plan.check import check_program
from resihp_plan.model import ModelSpec
from resihp_plan.plan import ParallelPlan, ReplicaPlan, Schedule, StagePlan
from resihp_plan.program import program
from resihp_plan.validate import validate
from resihp_plan.workload import Workload

MAX_PROVEN = 2
"""Kinds of pipelines whose program is checked in full in one planning."""


def prove(plan: ParallelPlan, model: ModelSpec, usable: Collection[int], workload: Workload) -> None:
    """The plan keeps the rules; so does the program of each of its pipelines (without migrations they are independent,
    and depend only on the numbers of stages and micro-batches). Of very many kinds some are checked in full; that none
    waits for ever is known of all, since their times were worked out."""
    validate(plan, model, alive=usable, num_micro_batches=workload.num_micro_batches)
    if plan.migrations:
        check_program(program(plan), plan)
        return
    kinds = sorted({(len(r.stages), r.num_micro_batches) for r in plan.replicas})
    for num_stages, count in kinds[:: max(1, len(kinds) // MAX_PROVEN)]:
        _prove_kind(plan.schedule, num_stages, count)


@lru_cache(maxsize=256)
def _prove_kind(schedule: Schedule, num_stages: int, count: int) -> None:
    """Once per process: the closed form is a pure function of these numbers."""
    stages = tuple(StagePlan(s, s + 1, (s,), (1,)) for s in range(num_stages))
    alone = ParallelPlan(0, (ReplicaPlan(stages, count),), schedule=schedule)
    check_program(program(alone), alone)
