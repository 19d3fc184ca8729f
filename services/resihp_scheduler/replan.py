"""The plan after a loss, at once: the fast planner's, or a better one if the full planner has it in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from resihp_messages import new_id
from resihp_scheduler import pricing
from resihp_scheduler.pace import observed
from resihp_scheduler.planning import Choice, JobPlanning, NoPlan, in_thread
from resihp_scheduler.question import key_of
from resihp_scheduler.situation import Situation
from resihp_scheduler.term import Term
from resihp_store import DecisionOutcome, DecisionRecord, IncidentRecord, UnitOfWork, decisions

MUCH_BETTER = 0.05
"""The full planner's plan changes more; predictions are within 5 % of what is achieved."""


async def after_loss(term: Term, after: Situation) -> Choice | NoPlan:
    """Both planners side by side if the job's constants were measured; else the fast one, which changes little. It also
    proves that the state is still held by somebody."""
    async with term.store.read() as connection:
        control = await decisions.control(connection, after.name)
        left_s, seen = await pricing.left_s(connection, after), await observed(connection, after, control)
    measured, speeds = pricing.calibration_of(control), after.speeds
    planning, usable = JobPlanning(after.spec, measured, seen), after.alive - control.evicted

    async def quick(alive: frozenset[int]) -> Choice | NoPlan:
        work = partial(planning.after_loss, after, alive, term.clock.monotonic, speeds)
        return await in_thread(work, term.settings.plan_deadline_s)

    first = asyncio.create_task(quick(usable))
    full: Choice | NoPlan | None = None
    is_measured = measured is not None  # nominal constants are too rough for a larger change than is needed
    if after.in_force is not None and is_measured:
        question = pricing.question_of(after, control, alive=usable, speeds=speeds, left_s=left_s, observed=seen)
        full = await term.solver.ask(question, term.settings.loss_deadline_s, may_finish=True)
    fast = await first
    if isinstance(fast, NoPlan) and usable != after.alive:  # the job cannot go on without what was evicted
        return await quick(after.alive)
    if isinstance(fast, NoPlan):
        return fast
    if isinstance(full, Choice):
        return _better(fast, full)
    return replace(fast, is_quick=full is None and is_measured)


def _better(fast: Choice, full: Choice) -> Choice:
    quick, best = fast.predicted_tokens_per_s or 0.0, full.predicted_tokens_per_s or 0.0
    if best <= quick * (1 + MUCH_BETTER):
        return fast
    lost = {
        "name": "fast planner",
        "difference": fast.difference,
        "predicted_tokens_per_s": quick,
        "bytes_moved": None,
        "reason": f"predicted {quick / best - 1:+.1%} tokens/s",
    }
    return replace(full, alternatives=(lost, *full.alternatives))


async def record(
    work: UnitOfWork, after: Situation, choice: Choice, incident: IncidentRecord, reconfiguration_id: str, plan_s: float
) -> None:
    """Keep the decision beside those that could wait: the same devices at the same speeds are not weighed again."""
    control = await decisions.control(work.connection, after.name)
    usable = after.alive - control.evicted
    row = DecisionRecord(
        id=new_id(),
        job=after.name,
        incident_id=incident.id,
        reconfiguration_id=reconfiguration_id,
        trigger=f"{incident.kind.replace('_', ' ')}: {', '.join(map(str, incident.ranks))}",
        question={
            "speeds": {str(r): p for r, p in after.speeds.items()},
            "alive": sorted(usable),
            "old_epoch": after.in_force.epoch if after.in_force is not None else 0,
        },
        key="" if choice.is_quick else key_of(usable, after.speeds, control.thresholds),
        action="repair",
        outcome=DecisionOutcome.ACTED,
        reason=choice.reason,
        difference=choice.difference,
        plan=choice.plan.to_dict(),
        alternatives=choice.alternatives,
        predicted_tokens_per_s=choice.predicted_tokens_per_s,
        stay_tokens_per_s=None,
        bound_tokens_per_s=choice.bound_tokens_per_s,
        planning_s=plan_s,
        again_at=None,
        note="",
        created_at=work.now,
        closed_at=work.now,
    )
    await decisions.add_decision(work, row)
