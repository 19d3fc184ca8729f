"""Predicted iterations of plans under a typical workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel
from resihp_plan.owners import volumes
from resihp_plan.plan import ParallelPlan, StagePlan
from resihp_plan.planner.shape import Shape, shape_of
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import GroupMaker
from resihp_plan.program import program
from resihp_plan.simulate import PipelineRun, Simulation, simulate, synchronise
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
    """Step times of many plans: those of `predict`, worked out once for each kind of replica (`Space`)."""

    def __init__(self, workload: Workload, cost: CostModel, health: Health | None) -> None:
        self.workload, self.cost, self.health = workload, cost, health
        self._space = Space(GroupMaker(cost, workload.micro_batch, health, None), workload)
        self._last: tuple[list[tuple[StagePlan, ...]], Mapping[tuple[int, ...], int]] | None = None

    def step_s(self, plan: ParallelPlan) -> float:
        """`predict(plan, ...).step_s`; infinite if it uses a stopped device."""
        return self.steps_s([plan])[0]

    def steps_s(self, plans: Sequence[ParallelPlan]) -> list[float]:
        """Of many plans; those with equal replicas one after the other."""
        shapes = [None if plan.migrations else shape_of(plan, self._space.maker) for plan in plans]
        for schedule in {plan.schedule for plan in plans}:  # all timelines of a kind at once
            self._space.stops_s(schedule, [r for x in shapes if x and x.schedule is schedule for r in x.replicas])
        return [self._step_s(plan, shape) for plan, shape in zip(plans, shapes, strict=True)]

    def _step_s(self, plan: ParallelPlan, shape: Shape | None) -> float:
        if plan.migrations:  # replicas depend on each other
            return predict(plan, self.workload, self.cost, health=self.health).step_s
        if shape is None:
            return float("inf")
        clock: dict[int, float] = {}
        for replica, stops in zip(plan.replicas, self._space.stops_s(plan.schedule, shape.replicas), strict=True):
            for stage, stop in zip(replica.stages, stops, strict=True):
                clock.update(dict.fromkeys(stage.ranks, stop))
        run = PipelineRun(clock, {}, {})
        return synchronise(plan, run, self._volumes(plan), self.cost).makespan_s

    def _volumes(self, plan: ParallelPlan) -> Mapping[tuple[int, ...], int]:
        """The last ones again, if only the counts differ."""
        stages = [r.stages for r in plan.replicas]
        if self._last is None or self._last[0] != stages:
            self._last = stages, volumes(plan, self.cost.model)
        return self._last[1]
