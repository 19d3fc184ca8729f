"""Predicted iteration of a plan under a typical workload."""

from __future__ import annotations

from dataclasses import dataclass

from resihp_plan.buckets import Bucket, buckets_of
from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel
from resihp_plan.layout import layout
from resihp_plan.plan import ParallelPlan
from resihp_plan.program import program
from resihp_plan.simulate import Simulation, simulate
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


def predict(
    plan: ParallelPlan,
    workload: Workload,
    cost: CostModel,
    *,
    health: Health | None = None,
    buckets: tuple[Bucket, ...] | None = None,
) -> Prediction:
    """Generate the plan's program and simulate it. `plan` must be valid for the cost's model."""
    generated = program(plan)
    known = buckets_of(layout(plan, cost.model)) if buckets is None else buckets
    simulation = simulate(plan, generated, workload.work(plan), cost, health=health, buckets=known)
    return Prediction(plan, simulation, workload.tokens)
