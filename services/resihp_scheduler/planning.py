"""The planner's functions, called for a job in a worker thread with a deadline, so that the event loop stays live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from resihp_messages import JobSpec
from resihp_plan import (
    Cluster,
    CostModel,
    ModelSpec,
    ParallelPlan,
    Schedule,
    Workload,
    describe_change,
    layout,
    transfers,
    validate,
)
from resihp_plan.planner import Decision, Infeasible, plan_after_loss, plan_initial, predict
from resihp_scheduler.situation import Situation

T = TypeVar("T")
MIN_GAIN = 0.01
"""A larger plan that is predicted to be faster by less than this is not worth a change of layout."""


@dataclass(frozen=True)
class Choice:
    """A plan to issue, and why."""

    plan: ParallelPlan
    reason: str
    difference: str
    predicted_tokens_per_s: float | None
    bound_tokens_per_s: float | None = None
    alternatives: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class NoPlan:
    """The job cannot go on; `reason` is for people."""

    reason: str


@dataclass(frozen=True)
class JobPlanning:
    """Planning for one job. Methods are pure apart from the clock."""

    spec: JobSpec
    model: ModelSpec = field(init=False)
    cost: CostModel = field(init=False)
    workload: Workload = field(init=False)

    def __post_init__(self) -> None:
        model = ModelSpec(**self.spec.model.model_dump())
        element = 8 if self.spec.dtype == "float64" else 4
        batch = self.spec.batch
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "cost", CostModel.for_model(model, bytes_per_element=element))
        object.__setattr__(self, "workload", Workload.typical(batch.micro_batches, batch.tokens_per_micro_batch))

    def initial(self, cluster: Cluster | None = None) -> ParallelPlan:
        """The healthy plan. Raises `Infeasible`."""
        p = self.spec.parallel
        known = cluster or Cluster.of(p.num_devices)
        plan = plan_initial(known, self.model, p.tp, p.pp, p.dp, self.workload.num_micro_batches)
        return replace(plan, schedule=Schedule(p.schedule))

    def first(self, epoch: int) -> Choice:
        """The initial plan with its prediction."""
        plan = self.initial().with_epoch(epoch)
        predicted = predict(plan, self.workload, self.cost).tokens_per_s
        return Choice(plan, "initial plan", "", predicted, predicted)

    def after_loss(
        self,
        situation: Situation,
        alive: Collection[int],
        clock: Callable[[], float],
    ) -> Choice | NoPlan:
        """The plan for the ranks that are left, or why there is none."""
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
                state_plan=held,
                reference=healthy,
                require_state=state_exists,
                epoch=situation.newest_epoch + 1,
            )
        except Infeasible as error:
            return NoPlan(str(error))
        except ValueError as error:  # a plan that breaks a rule: better a clear end than survivors that wait in vain
            return NoPlan(f"planning failed: {error}")
        return _choice(decision)

    def growth(self, situation: Situation, clock: Callable[[], float]) -> Choice | NoPlan:
        """A plan for all devices that are alive, some of which are in no plan yet. With all of the job's devices: its
        initial layout; else the best one for those that are there, seen from the initial layout. If that is not faster
        than the plan in force, the new devices stand by."""
        healthy, old, epoch = self.initial(), situation.plan_in_force(), situation.newest_epoch + 1
        try:
            if situation.alive == set(healthy.world):
                wanted = healthy.with_epoch(epoch)
            else:
                decision = plan_after_loss(
                    healthy,
                    self.model,
                    situation.cluster,
                    situation.alive,
                    self.workload,
                    clock=clock,
                    cost=self.cost,
                    state_plan=old,
                    epoch=epoch,
                )
                wanted = decision.plan
        except (Infeasible, ValueError) as error:
            return NoPlan(str(error))
        new = tuple(sorted(situation.alive - set(old.world)))
        waiting = replace(old, epoch=epoch, standby=tuple(sorted({*old.standby, *new})))
        best, kept = (predict(p, self.workload, self.cost).tokens_per_s for p in (wanted, waiting))
        plan, name = (wanted, "all devices work") if best > kept * (1 + MIN_GAIN) else (waiting, "they stand by")
        if plan is wanted and wanted.standby:
            name = "they are used"
        return Choice(
            plan=plan,
            reason=f"{name}, predicted {max(best, kept):.0f} tokens/s instead of {kept:.0f}",
            difference=describe_change(old, plan),
            predicted_tokens_per_s=best if plan is wanted else kept,
            bound_tokens_per_s=predict(healthy, self.workload, self.cost).tokens_per_s
            * len(situation.alive)
            / len(healthy.world),
        )

    def _complete(self, plan: ParallelPlan, alive: Collection[int]) -> bool:
        """Whether every slice has a live holder in this layout."""
        held = layout(plan, self.model)
        return not transfers(held, held, alive=alive).missing

    def requested(self, situation: Situation, wanted: ParallelPlan) -> Choice:
        """An operator's plan, checked against the job and completed: devices that it leaves out stand by.

        Raises `InvalidPlan` (a ValueError) with the broken rule.
        """
        validate(wanted, self.model, alive=situation.alive, num_micro_batches=self.workload.num_micro_batches)
        left_out = situation.alive - set(wanted.world)
        plan = ParallelPlan(
            epoch=situation.newest_epoch + 1,
            replicas=wanted.replicas,
            migrations=wanted.migrations,
            standby=tuple(sorted({*wanted.standby, *left_out})),
            schedule=wanted.schedule,
        )
        old = situation.plan_in_force()
        predicted = predict(plan, self.workload, self.cost).tokens_per_s
        return Choice(plan, "", describe_change(old, plan), predicted)


def _choice(decision: Decision) -> Choice:
    return Choice(
        plan=decision.plan,
        reason=decision.reason,
        difference=decision.difference,
        predicted_tokens_per_s=decision.predicted_tokens_per_s,
        bound_tokens_per_s=decision.bound_tokens_per_s,
        alternatives=tuple(
            {
                "name": a.name,
                "difference": a.difference,
                "predicted_tokens_per_s": a.predicted_tokens_per_s,
                "bytes_moved": a.bytes_moved,
                "reason": a.why_lost,
            }
            for a in decision.alternatives
        ),
    )


async def in_thread(work: Callable[[], T], deadline_s: float) -> T | NoPlan:
    """Run `work` beside the event loop. A thread cannot be stopped: after the deadline its answer is dropped."""
    try:
        async with asyncio.timeout(deadline_s):
            return await asyncio.to_thread(work)
    except TimeoutError:
        return NoPlan(f"planning took longer than {deadline_s:g} s")
