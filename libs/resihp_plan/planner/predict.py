"""Predicted iterations of plans under a typical workload."""

from __future__ import annotations

from dataclasses import dataclass

from resihp_plan.buckets import Bucket, buckets_of
from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel
from resihp_plan.layout import layout
from resihp_plan.plan import ParallelPlan, ReplicaPlan, Schedule
from resihp_plan.program import program
from resihp_plan.simulate import PipelineRun, Simulation, run_pipelines, simulate, synchronise
from resihp_plan.workload import Workload


@dataclass(frozen=True)
class Prediction:
    """One iteration of `plan`."""

    plan: ParallelPlan
    simulation: Simulation
    tokens: int

    @property
    def step_s(self) -> float:
        return self.simulation.makespan_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.simulation.makespan_s


def predict(plan: ParallelPlan, workload: Workload, cost: CostModel, *, health: Health | None = None) -> Prediction:
    """Generate the plan's program and simulate it. `plan` must be valid for the cost's model."""
    simulation = simulate(plan, program(plan), workload.work(plan), cost, health=health)
    return Prediction(plan, simulation, workload.tokens)


class Predictor:
    """Step times of many plans that have replicas in common: the same simulation, each replica run only once."""

    def __init__(self, workload: Workload, cost: CostModel, health: Health | None) -> None:
        self.workload, self.cost, self.health = workload, cost, health
        self._runs: dict[tuple[ReplicaPlan, Schedule], PipelineRun] = {}

    def step_s(self, plan: ParallelPlan, buckets: tuple[Bucket, ...] | None = None) -> float:
        """`predict(plan, ...).step_s`, for plans without migrations. `buckets`: of this plan, if they are at hand."""
        assert not plan.migrations  # replicas would depend on each other
        known = buckets_of(layout(plan, self.cost.model)) if buckets is None else buckets
        return synchronise(plan, [self._run(r, plan.schedule) for r in plan.replicas], known, self.cost).makespan_s

    def _run(self, replica: ReplicaPlan, schedule: Schedule) -> PipelineRun:
        key = replica, schedule
        if key not in self._runs:
            alone = ParallelPlan(epoch=0, replicas=(replica,), schedule=schedule)
            work = self.workload.work(alone)
            self._runs[key] = run_pipelines(alone, program(alone), work, self.cost, self.health)
        return self._runs[key]
