"""What operators want of the plan: one of their own, without some devices, or the one before."""

from __future__ import annotations

from dataclasses import replace

from resihp_messages.request import RequestEvict, RequestPlan, RequestUndo
from resihp_plan import InvalidPlan, InvalidProgram, ParallelPlan
from resihp_scheduler import pricing
from resihp_scheduler.planning import Choice, NoPlan, in_thread
from resihp_scheduler.situation import ranks_text
from resihp_scheduler.solve import solve_fast
from resihp_scheduler.steering import Steered, Wanted
from resihp_store import history, queries

MAX_LOOKED_AT = 50
"""Changes that `undo` goes back over to find another layout."""


async def choose_plan(asked: Steered) -> Wanted | NoPlan:
    """The operator's plan, if it keeps the rules."""
    body = asked.envelope.body
    assert isinstance(body, RequestPlan)
    try:
        wanted = ParallelPlan.from_dict({"epoch": 0, **body.plan})
    except InvalidPlan as error:
        return NoPlan(f"invalid plan: {error}")
    choice = await _requested(asked, wanted)
    return choice if isinstance(choice, NoPlan) else Wanted(body.reason, choice)


async def _requested(asked: Steered, wanted: ParallelPlan) -> Choice | NoPlan:
    planning, situation = asked.planning, asked.situation
    try:
        return await in_thread(lambda: planning.requested(situation, wanted), asked.term.settings.plan_deadline_s)
    except (InvalidPlan, InvalidProgram) as error:
        return NoPlan(f"invalid plan: {error}")


async def choose_eviction(asked: Steered) -> Wanted | NoPlan:
    """The best plan without the evicted devices."""
    body, situation = asked.envelope.body, asked.situation
    assert isinstance(body, RequestEvict)
    if unknown := sorted(set(body.ranks) - set(situation.of_rank)):
        return NoPlan(f"the job has no {ranks_text(unknown)}")
    control = replace(asked.control, evicted=asked.control.evicted | set(body.ranks))
    reason = f"{ranks_text(body.ranks)} evicted: {body.reason}"
    usable = situation.alive - control.evicted
    if not usable:
        return NoPlan("no device would be left")
    if not control.evicted & set(situation.plan_in_force().active):
        return Wanted(reason, control=control)
    choice = await _best(asked, usable)
    return choice if isinstance(choice, NoPlan) else Wanted(reason, choice, control, "evict")


async def _best(asked: Steered, usable: frozenset[int]) -> Choice | NoPlan:
    """By the full planner, or the fast one if that is late."""
    term, situation = asked.term, asked.situation
    async with term.store.read() as connection:
        left_s = await pricing.left_s(connection, situation)
    question = pricing.question_of(
        situation, asked.control, alive=usable, speeds=situation.speeds, left_s=left_s, observed=asked.observed
    )
    deadline_s = term.settings.plan_deadline_s / 2
    answer = await term.solver.ask(question, deadline_s)
    if answer is None:
        answer = await in_thread(lambda: solve_fast(question, term.clock.monotonic), deadline_s)
    return answer


async def choose_undo(asked: Steered) -> Wanted | NoPlan:
    """The layout before; devices of it that were evicted since are readmitted."""
    body, situation = asked.envelope.body, asked.situation
    assert isinstance(body, RequestUndo)
    before = await _before(asked)
    if before is None:
        return NoPlan("there is no other layout to go back to")
    if gone := set(before.active) - situation.alive:
        return NoPlan(f"the layout of epoch {before.epoch} needs {ranks_text(gone)}, which cannot be used now")
    choice = await _requested(asked, replace(before, standby=()))
    if isinstance(choice, NoPlan):
        return choice
    control = replace(asked.control, evicted=asked.control.evicted - set(before.active))
    reason = f"back to the layout of epoch {before.epoch}: {body.reason}"
    return Wanted(reason, choice, control, "undo")


async def _before(asked: Steered) -> ParallelPlan | None:
    """The newest earlier plan of the job's applied changes that is laid out differently."""
    situation = asked.situation
    now = situation.plan_in_force()
    page = history.Page(limit=MAX_LOOKED_AT, newest_first=True)
    async with asked.term.store.read() as connection:
        applied = await history.reconfigurations(connection, page, job=situation.name, status="applied")
        epochs = [c.old_epoch for c in applied if c.old_epoch and c.new_epoch <= now.epoch]
        rows = await queries.plans(connection, situation.name, from_epoch=min(epochs, default=now.epoch))
    plans = {row.epoch: ParallelPlan.from_dict(row.plan) for row in rows if row.epoch in epochs}
    return next((p for e in epochs if (p := plans.get(e)) and _differs(p, now)), None)


def _differs(plan: ParallelPlan, other: ParallelPlan) -> bool:
    return (plan.replicas, plan.migrations, plan.schedule) != (other.replicas, other.migrations, other.schedule)
