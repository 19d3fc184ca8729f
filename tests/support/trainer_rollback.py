"""Deaths of all holders of a part of the state at once."""

from __future__ import annotations

from resihp_messages.link import PlanInstalled
from resihp_plan import ParallelPlan
from resihp_trainer.trials.trainer_job import TrainerJob
from support.trainer_cases import plan_without

SECOND_STAGE = (2, 3, 6, 7)
"""All that hold layers 2 and 3."""


def without(plan: ParallelPlan, dead: list[int]) -> ParallelPlan:
    return plan_without(plan, dead, require_state=False)


class Massacre:
    """`on_pump`: kills the second stage of both replicas in one moment, once rank 0 committed `after` times."""

    def __init__(self, job: TrainerJob, after: int) -> None:
        self.job, self.after, self.is_over = job, after, False

    def __call__(self) -> None:
        if not self.is_over and self.job.committed(0) >= self.after:
            for rank in SECOND_STAGE:
                self.job.kill(rank)
            self.is_over = True


def settled(job: TrainerJob) -> list[PlanInstalled]:
    """What the ranks said of the plan that ended the disturbance."""
    return [f for _, f in job.all(PlanInstalled, job.last_plan.epoch)]
