"""Weighs what can wait: slow devices, recoveries, returned devices. Losses do not wait (`losses`).

Look (under the job's lock) -> ask the planner (without it) -> look again: if anything has changed meanwhile, nothing is
applied and the question is asked anew. Everything that was weighed is recorded, with the alternatives and the reasons.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from resihp_scheduler import pricing
from resihp_scheduler.aim import open_slow
from resihp_scheduler.answered import Answered, earlier
from resihp_scheduler.planning import NoPlan, in_thread
from resihp_scheduler.solve import solve_fast
from resihp_scheduler.term import Term
from resihp_scheduler.view import View, view
from resihp_store import DecisionMode, DecisionOutcome

log = structlog.get_logger(__name__)


async def think(term: Term, job: str) -> float | None:
    """Weigh what is to be weighed; returns when to look again without a new reason."""
    async with term.lock(job):
        async with term.store.read() as connection:
            seen = await view(term, connection, job)
        if seen is None:
            return None
        planned = {r: seen.situation.of_rank[r].p for r in open_slow(seen.incidents)}
        term.scores.watch(job, planned, seen.limits.hysteresis)
        if (again_s := _not_now(seen)) is not _NOW:
            return again_s
        question = pricing.question_of(
            seen.situation,
            seen.control,
            alive=seen.alive,
            speeds=seen.aim.speeds,
            left_s=seen.left_s,
            age_s=pricing.age_s(seen.incidents, seen.now),
            observed=seen.observed,
        )
    begun_s = term.clock.monotonic()
    answer = await term.solver.ask(question, term.settings.plan_deadline_s / 2)
    if answer is None:
        answer = await in_thread(lambda: solve_fast(question, term.clock.monotonic), term.settings.plan_deadline_s / 2)
    planning_s = term.clock.monotonic() - begun_s
    term.metrics.planning_s.observe(planning_s)
    async with term.lock(job), term.transaction() as work:
        now_seen = await view(term, work.connection, job)
        if isinstance(answer, NoPlan):
            log.warning("no plan for a change that can wait", job=job, reason=answer.reason)
            return None
        answered = Answered(term, work, seen, question, answer, planning_s)
        if now_seen is None:
            await answered.overtaken()
            return None
        again_s = _not_now(now_seen)  # it may have been paused or vetoed
        is_same = now_seen.key == seen.key and now_seen.situation.newest_epoch + 1 == question.epoch
        if again_s is not _NOW or not is_same:
            await answered.overtaken()
            return 0.0 if again_s is _NOW else again_s
        return await replace(answered, seen=now_seen).commit()


_NOW = -1.0


def _not_now(seen: View) -> float | None:
    """`_NOW` if the question is to be weighed; else after how many seconds to look again (None: not by itself)."""
    last, waits_s = seen.last, seen.aim.again_in_s
    if seen.control.mode is DecisionMode.OFF:
        return None
    if seen.control.holds(seen.now):
        until = seen.control.held_until
        return None if until is None else max(0.0, (until - seen.now).total_seconds())
    if last is None:
        nothing_wrong = not seen.aim.speeds and seen.alive == {d.rank for d in seen.situation.devices}
        return waits_s if nothing_wrong and not seen.situation.newcomers else _NOW
    if last.key != seen.key or seen.is_approved or seen.came_to_nothing:
        return _NOW
    if last.outcome is not DecisionOutcome.OPEN:
        return waits_s
    if last.action == "advise":
        return _NOW if seen.may_act else waits_s
    left_s = (last.again_at - seen.now).total_seconds() if last.again_at is not None else 0.0
    return _NOW if left_s <= 0 else earlier(left_s, waits_s)
