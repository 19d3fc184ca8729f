"""The planner's functions, called for a job. Pure apart from the clock; `solver` calls them with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar

from resihp_messages import JobSpec
from resihp_plan import (
    Cluster,
    CostModel,
    MemoryModel,
    ModelSpec,
    ParallelPlan,
    Schedule,
    Workload,
    check_program,
    describe_change,
    program,
    validate,
)
from resihp_plan.cluster import Health
from resihp_plan.owners import lost
from resihp_plan.planner import Decision, Infeasible, InfeasibleKind, plan_after_loss, plan_initial, predict
from resihp_scheduler.calibration import Calibration, calibrated_cost, workload_of
from resihp_scheduler.pace import Observed
from resihp_scheduler.situation import Situation

T = TypeVar("T")
GO_BACK = "a part of the state has no live holder: all ranks go back to the newest snapshot or checkpoint"
BY = {"constants": "", "pace": " at the job's pace", "nominal": " by nominal constants"}
FULLY_CHECKED = 512
"""Up to so many devices the whole program of a plan is proved; beyond, the planner has proved each kind of pipeline."""


@dataclass(frozen=True)
class Choice:
    """A plan to issue, and why."""

    plan: ParallelPlan
    reason: str
    difference: str
    predicted_tokens_per_s: float | None
    bound_tokens_per_s: float | None = None
    predicted_by: str = ""
    """By what constants, as `JobPlanning.basis`."""
    speed_share: float | None = None
    """What is left of the devices' speed."""
    alternatives: tuple[Mapping[str, Any], ...] = ()
    stay_tokens_per_s: float | None = None
    """With the plan in force at the same speeds; None if it cannot run any more."""
    gain: float | None = None
    """What the plan is chosen for, relative to the plan in force and by constants: 0.1 is a tenth faster. Workers that
    share processors may not feel it; their plans are weighed as if each had a device of its own all the same."""
    change_s: float = 0.0
    """Predicted time without training."""
    stays: bool = False
    """The plan in force is the best one."""
    is_quick: bool = False
    """Of the fast planner, because the full one was late: worth another thought when there is time."""

    def to_dict(self) -> dict[str, Any]:
        values = {key: getattr(self, key) for key in self.__dataclass_fields__}
        return {**values, "plan": self.plan.to_dict(), "alternatives": [dict(a) for a in self.alternatives]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        plan, alternatives = ParallelPlan.from_dict(values["plan"]), tuple(values["alternatives"])
        return cls(**{**values, "plan": plan, "alternatives": alternatives})


@dataclass(frozen=True)
class NoPlan:
    """The job cannot go on; `reason` is for people."""

    reason: str


@dataclass(frozen=True)
class JobPlanning:
    """Planning for one job, with its nominal or measured constants. Plans are compared by them; what a plan is said to
    achieve is scaled to what the job achieves, if that is known (`pace`)."""

    spec: JobSpec
    measured: Calibration | None = None
    observed: Observed | None = None
    model: ModelSpec = field(init=False)
    cost: CostModel = field(init=False)
    workload: Workload = field(init=False)

    def __post_init__(self) -> None:
        model = ModelSpec(**self.spec.model.model_dump())
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "cost", calibrated_cost(self.spec, model, self.measured))
        object.__setattr__(self, "workload", workload_of(self.spec, self.measured))

    def initial(self, cluster: Cluster | None = None) -> ParallelPlan:
        """The healthy plan. Raises `Infeasible`."""
        p = self.spec.parallel
        known = cluster or Cluster.of(p.num_devices)
        plan = plan_initial(known, self.model, p.tp, p.pp, p.dp, self.workload.num_micro_batches)
        plan = replace(plan, schedule=Schedule(p.schedule))
        for rank, needed, limit in self._excess(plan):
            need = f"rank {rank} needs {needed} bytes, parallel.memory_bytes is {limit}"
            raise Infeasible(InfeasibleKind.MEMORY, f"the initial plan does not fit: {need}")
        return plan

    def _excess(self, plan: ParallelPlan) -> tuple[tuple[int, int, int], ...]:
        limit, tokens = self.spec.parallel.memory_bytes, self.spec.batch.tokens_per_micro_batch
        if limit is None:
            return ()
        memory = MemoryModel(self.model, tokens, dict.fromkeys(plan.world, limit), self.cost.bytes_per_element)
        return memory.excess(plan)

    def first(self, epoch: int) -> Choice:
        """The initial plan with its prediction."""
        plan = self.initial().with_epoch(epoch)
        self.prove(plan, plan.world)
        predicted = self.tokens_per_s(plan)
        return Choice(plan, "initial plan", "", predicted, predicted, self.basis, 1.0)

    @property
    def basis(self) -> str:
        """constants: measured on the job; pace: nominal ones, scaled to what the job achieved; nominal."""
        if self.measured is not None:
            return "constants"
        return "nominal" if self.observed is None else "pace"

    @cached_property
    def pace(self) -> float:
        """Achieved over predicted throughput, under the plan that was observed."""
        if self.basis != "pace" or self.observed is None:
            return 1.0
        return self.observed.tokens_per_s / self._by_constants(self.observed.plan, self.observed.speeds)

    def tokens_per_s(self, plan: ParallelPlan, health: Health | None = None) -> float:
        """Predicted throughput, at the job's pace."""
        return self.pace * self._by_constants(plan, health)

    def _by_constants(self, plan: ParallelPlan, health: Health | None) -> float:
        """The simulated program, and what an iteration costs outside it. Workers that share processors are as fast as
        what they compute together allows, whoever waits for whom; how much of it a second does is their pace."""
        if self.spec.shares_cores and self.basis == "pace":
            found = predict(plan, self.workload, self.cost, health=health)
            return self.workload.tokens / sum(found.simulation.busy_s.values())
        return self._on_own_devices(plan, health)

    def _on_own_devices(self, plan: ParallelPlan, health: Health | None) -> float:
        """Tokens/s by the critical path of the simulated program: what plans are compared by."""
        return self.workload.tokens / (predict(plan, self.workload, self.cost, health=health).step_s + self.overhead_s)

    def _gain(self, new: ParallelPlan, old: ParallelPlan, speeds: Health) -> float:
        """`Choice.gain`."""
        return self._on_own_devices(new, speeds) / self._on_own_devices(old, speeds) - 1.0

    @property
    def overhead_s(self) -> float:
        """What an iteration costs outside its program."""
        return self.measured.overhead_s if self.measured is not None else 0.0

    def bound(self, speeds: Health, alive: Collection[int]) -> float:
        """Healthy throughput times the share of the devices' speed that is left."""
        return self.tokens_per_s(self.initial()) * self.share(speeds, alive)

    def share(self, speeds: Health, alive: Collection[int]) -> float:
        """What is left of the devices' speed. A worker that shared processors leaves its part to the others."""
        if self.spec.shares_cores:
            return 1.0
        return sum(speeds.get(r, 1.0) for r in alive) / self.spec.parallel.num_devices

    def prove(self, plan: ParallelPlan, alive: Collection[int]) -> None:
        """The rules of plans, and the program, before anybody runs it. Raises `InvalidPlan`, `InvalidProgram`."""
        validate(plan, self.model, alive=alive, num_micro_batches=self.workload.num_micro_batches)
        if len(plan.world) <= FULLY_CHECKED:
            check_program(program(plan), plan)

    def after_loss(
        self,
        situation: Situation,
        alive: Collection[int],
        clock: Callable[[], float],
        speeds: Health | None = None,
    ) -> Choice | NoPlan:
        """The plan for the ranks that are left, by the fast planner, or why there is none."""
        healthy = self.initial()
        old = situation.plan_in_force() if situation.in_force is not None else healthy
        bases = [ParallelPlan.from_dict(p.plan) for p in situation.bases]
        # Before the first plan is known to be installed there may be no state yet, and nothing to lose.
        state_exists = situation.job.epoch > 0
        held = next((b for b in bases if self._complete(b, alive)), bases[0] if bases else None)
        try:
            decision = plan_after_loss(
                old,
                self.model,
                situation.cluster,
                alive,
                self.workload,
                clock=clock,
                cost=self.cost,
                health=speeds or None,
                state_plan=held,
                reference=healthy,
                require_state=state_exists and not self.spec.can_roll_back,
                epoch=situation.newest_epoch + 1,
            )
            self.prove(decision.plan, alive)
        except Infeasible as error:
            return NoPlan(str(error))
        except ValueError as error:  # a plan that breaks a rule: better a clear end than survivors that wait in vain
            return NoPlan(f"planning failed: {error}")
        choice = self.choice_of(decision, old, speeds or {}, alive)
        if state_exists and held is not None and not self._complete(held, alive):
            choice = replace(choice, reason=f"{choice.reason}; {GO_BACK}")
        return choice

    def choice_of(self, decision: Decision, old: ParallelPlan, speeds: Health, alive: Collection[int]) -> Choice:
        """The planner's decision, predicted by the full simulation."""
        running = set(old.active) <= set(alive)
        predicted, bound = self.tokens_per_s(decision.plan, speeds), self.bound(speeds, alive)
        change_s = decision.change_s or 0.0
        by, of_bound = BY[self.basis], f"{predicted / bound:.1%} of the bound"
        scale = predicted / (self.workload.tokens / (decision.predicted_step_s + self.overhead_s))
        stay = self.tokens_per_s(old, speeds) if running else None
        gain = None if stay is None else predicted / stay - 1.0
        if gain is not None and self.spec.shares_cores:
            gain = self._gain(decision.plan, old, speeds)
        return Choice(
            plan=decision.plan,
            reason=(
                f"{decision.name}: predicted {predicted:.0f} tokens/s{by} ({of_bound}), "
                f"{decision.bytes_moved / 1e6:.1f} MB to move"
            ),
            difference=decision.difference,
            predicted_tokens_per_s=predicted,
            bound_tokens_per_s=bound,
            predicted_by=self.basis,
            speed_share=self.share(speeds, alive),
            alternatives=tuple(
                {
                    "name": a.name,
                    "difference": a.difference,
                    "predicted_tokens_per_s": scale * self.workload.tokens / (a.predicted_step_s + self.overhead_s),
                    "bytes_moved": a.bytes_moved,
                    "reason": a.why_lost,
                }
                for a in decision.alternatives
            ),
            stay_tokens_per_s=stay,
            gain=gain,
            change_s=change_s,
        )

    def _complete(self, plan: ParallelPlan, alive: Collection[int]) -> bool:
        """Whether every slice has a live holder in this layout."""
        return not lost(plan, self.model, frozenset(alive))

    def requested(self, situation: Situation, wanted: ParallelPlan) -> Choice:
        """An operator's plan, checked against the job and completed: devices that it leaves out stand by.

        Raises `InvalidPlan` or `InvalidProgram` (ValueErrors) with the broken rule.
        """
        left_out = situation.alive - set(wanted.world)
        standby = tuple(sorted({*wanted.standby, *left_out}))
        plan = replace(wanted, epoch=situation.newest_epoch + 1, standby=standby)
        self.prove(plan, situation.alive)
        old, speeds = situation.plan_in_force(), situation.speeds
        predicted = self.tokens_per_s(plan, speeds)
        bound, share = self.bound(speeds, situation.alive), self.share(speeds, situation.alive)
        return Choice(plan, "", describe_change(old, plan), predicted, bound, self.basis, share)


async def in_thread(work: Callable[[], T], deadline_s: float) -> T | NoPlan:
    """Run `work` beside the event loop. A thread cannot be stopped: after the deadline its answer is dropped."""
    try:
        async with asyncio.timeout(deadline_s):
            return await asyncio.to_thread(work)
    except TimeoutError:
        return NoPlan(f"planning took longer than {deadline_s:g} s")
