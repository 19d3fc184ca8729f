"""Weighs what can wait: slow devices, recoveries, returned devices. Losses do not wait (`losses`).

Look (under the job's lock) -> ask the planner (without it) -> look again: if anything has changed meanwhile, nothing is
applied and the question is asked anew. Everything that was weighed is recorded, with the alternatives and the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from resihp_messages import event, new_id
from resihp_scheduler import changes, pricing
from resihp_scheduler.aim import SLOW, Aim, aim, open_slow
from resihp_scheduler.changes import Cause
from resihp_scheduler.planning import Choice, NoPlan, in_thread
from resihp_scheduler.question import Question, key_of
from resihp_scheduler.refine import refine
from resihp_scheduler.rules.breaker import Breaker, trips
from resihp_scheduler.rules.ski_rental import Advice, Offer, weigh
from resihp_scheduler.situation import Situation, load, ranks_text
from resihp_scheduler.solve import solve_fast
from resihp_scheduler.term import Term
from resihp_store import (
    ControlRecord,
    DecisionMode,
    DecisionOutcome,
    DecisionRecord,
    IncidentRecord,
    JobState,
    ReconfigurationStatus,
    UnitOfWork,
    decisions,
    queries,
)

log = structlog.get_logger(__name__)

REMEMBERED = 50
"""Decisions that are looked at."""
MAX_TRIES = 3
"""Changes for one question."""


@dataclass(frozen=True)
class View:
    """Everything that a decision about a job depends on, read together."""

    situation: Situation
    control: ControlRecord
    incidents: tuple[IncidentRecord, ...]
    made: tuple[DecisionRecord, ...]
    """Newest first."""
    aim: Aim
    is_refined: bool
    """Speeds were measured under a plan that was made for slow devices."""
    left_s: float
    """Until the job ends."""
    now: datetime

    @property
    def alive(self) -> frozenset[int]:
        """Whom to plan with: newcomers on probation are not among them."""
        return self.situation.alive - self.aim.held_back

    @property
    def key(self) -> str:
        return key_of(self.alive, self.aim.speeds)

    @property
    def last(self) -> DecisionRecord | None:
        """The newest one that was not overtaken."""
        return next((d for d in self.made if d.outcome is not DecisionOutcome.SUPERSEDED), None)

    @property
    def is_approved(self) -> bool:
        """An operator has said yes to the answer of this very question."""
        last = self.last
        return (
            last is not None
            and last.key == self.key
            and last.outcome is DecisionOutcome.APPROVED
            and last.reconfiguration_id is None
        )

    @property
    def came_to_nothing(self) -> bool:
        """The change that answered this question was refused, or a broken link overtook it; it is tried a few times."""
        void = (ReconfigurationStatus.REJECTED, ReconfigurationStatus.SUPERSEDED)
        lost = {c.id for c in self.situation.changes if c.status in void}
        tries = [d for d in self.made if d.key == self.key and d.reconfiguration_id in lost]
        return self.last is not None and self.last in tries and len(tries) < MAX_TRIES

    @property
    def may_act(self) -> bool:
        return self.is_approved or (self.control.mode is DecisionMode.ACT and not self.control.breaker)

    @property
    def incident(self) -> IncidentRecord | None:
        """The newest slowness, open or just over."""
        return next((i for i in reversed(self.incidents) if i.kind == SLOW), None)


async def view(term: Term, work: queries.Connection, job: str) -> View | None:
    """None if the job has nothing to decide now: not running, ending, or with a change under way."""
    situation = await load(work, job)
    if situation is None or situation.job.state is not JobState.RUNNING or situation.job.epoch == 0:
        return None
    if situation.open is not None or situation.finished or situation.spec.attached is not None:
        return None
    incidents, now = await queries.incidents(work, job_name=job), term.now()
    control = await decisions.control(work, job)
    made = await decisions.decisions(work, job, newest_first=True, limit=REMEMBERED)
    refined = refine(situation, incidents, made, pricing.calibration_of(control), term.meter)
    aimed = aim(situation, incidents, term.scores, now, refined.speeds)
    again = [s for s in (aimed.again_in_s, refined.again_in_s) if s is not None]
    return View(
        situation=situation,
        control=control,
        incidents=incidents,
        made=made,
        aim=replace(aimed, again_in_s=min(again, default=None)),
        is_refined=bool(refined.speeds),
        left_s=await pricing.left_s(work, situation),
        now=now,
    )


async def think(term: Term, job: str) -> float | None:
    """Weigh what is to be weighed; returns when to look again without a new reason."""
    async with term.lock(job):
        async with term.store.read() as connection:
            seen = await view(term, connection, job)
        if seen is None:
            return None
        term.scores.watch(job, {r: seen.situation.of_rank[r].p for r in open_slow(seen.incidents)})
        if (again_s := _not_now(seen)) is not _NOW:
            return again_s
        question = pricing.question_of(
            seen.situation,
            seen.control,
            alive=seen.alive,
            speeds=seen.aim.speeds,
            left_s=seen.left_s,
            age_s=pricing.age_s(seen.incidents, seen.now),
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
        answered = _Answered(term, work, seen, question, answer, planning_s)
        if now_seen is None or now_seen.key != seen.key or now_seen.situation.newest_epoch + 1 != question.epoch:
            await answered.overtaken()
            return 0.0 if now_seen is not None else None
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
    return _NOW if left_s <= 0 else _earlier(left_s, waits_s)


def _earlier(a: float, b: float | None) -> float:
    return a if b is None else min(a, b)


@dataclass(frozen=True)
class _Answered:
    """A question with its answer, about to be recorded."""

    term: Term
    work: UnitOfWork
    seen: View
    question: Question
    choice: Choice
    planning_s: float

    async def overtaken(self) -> None:
        """Something changed while the planner thought: nothing is applied."""
        note = "the situation changed while it was planned"
        await self._record("stay", Advice("stay", note), DecisionOutcome.SUPERSEDED, note=note)

    async def commit(self) -> float | None:
        """Act, advise, wait or stay; returns when to look again."""
        seen, choice = self.seen, self.choice
        speeds = {r: seen.aim.speeds.get(r, 1.0) for r in seen.situation.alive}
        changed = {r: p for r, p in speeds.items() if seen.situation.of_rank[r].p != p}
        await self.work.set_speeds(seen.situation.name, changed)
        if seen.last is not None and seen.last.outcome is DecisionOutcome.OPEN:
            note = "weighed again" if seen.last.key == seen.key else "overtaken by other speeds or devices"
            await decisions.close_decision(self.work, seen.last.id, DecisionOutcome.SUPERSEDED, note)
        advice = self._weigh()
        again_s = seen.aim.again_in_s
        if advice.action == "wait":
            await self._record("wait", advice, DecisionOutcome.OPEN)
            return _earlier(advice.again_in_s or 0.0, again_s)
        newcomers_wait = choice.stays and bool(self.question.newcomers)
        if advice.action == "stay" and not newcomers_wait:
            await self._record("stay", advice, DecisionOutcome.SETTLED)
        elif await self._may_act():
            await self._act(advice)
        else:
            await self._record("advise", advice, DecisionOutcome.OPEN)
        return again_s

    def _weigh(self) -> Advice:
        choice = self.choice
        if choice.stays:
            text = "devices that came back stand by" if self.question.newcomers else "no plan is better"
            return Advice("stay", text)
        if choice.stay_tokens_per_s is None:
            return Advice("act", "the plan in force cannot run")
        offer = Offer(choice.stay_tokens_per_s, choice.predicted_tokens_per_s or 0.0, choice.change_s)
        return weigh(
            offer,
            horizon_s=self.question.horizon_s,
            age_s=pricing.age_s(self.seen.incidents, self.seen.now),
            left_s=self.seen.left_s,
        )

    async def _may_act(self) -> bool:
        if not self.seen.may_act or self.seen.is_approved:
            return self.seen.may_act
        acted = [d.created_at.timestamp() for d in self.seen.made if d.action == "act"]
        slow, alive = open_slow(self.seen.incidents), self.seen.situation.alive
        reason = trips(acted, len(alive & set(slow)), len(alive), self.seen.now.timestamp(), Breaker())
        if not reason:
            return True
        await decisions.put_control(self.work, replace(self.seen.control, breaker=reason))
        body = event.ModeChanged(mode="advise", breaker_tripped=True, reason=reason)
        await self._publish(body)
        log.warning("breaker tripped: changes need approval", job=self.seen.situation.name, reason=reason)
        return False

    async def _act(self, advice: Advice) -> None:
        seen, choice, incident = self.seen, self.choice, self.seen.incident
        cause = Cause(
            mode="planned",
            reason="; ".join((self.trigger, *seen.aim.notes, choice.reason, advice.reason)),
            incident_id=incident.id if incident is not None and seen.aim.speeds else None,
            correlation_id=incident.correlation_id if incident is not None and seen.aim.speeds else "",
            plan_s=self.planning_s,
        )
        identifier = await changes.issue(self.term, self.work, seen.situation, choice, cause)
        approved = seen.is_approved
        if approved and seen.last is not None:
            await decisions.set_reconfiguration(self.work, seen.last.id, identifier)
        await self._record("act", advice, DecisionOutcome.ACTED, reconfiguration_id=identifier)
        log.info("plan changes", job=seen.situation.name, epoch=choice.plan.epoch, trigger=self.trigger)

    @property
    def trigger(self) -> str:
        """What made us think, for people."""
        before = {int(r): p for r, p in (self.seen.last.question["speeds"] if self.seen.last else {}).items()}
        speeds, parts = self.seen.aim.speeds, []
        if self.question.newcomers:
            parts.append(f"{ranks_text(self.question.newcomers)} returned")
        parts += [f"rank {r} slow (p {p:.2f})" for r, p in sorted(speeds.items()) if before.get(r) != p]
        better = [r for r in before if r in self.seen.alive and r not in speeds]
        if better:
            parts.append(f"{ranks_text(better)} recovered")
        return "; ".join(parts) or "other devices than before"

    async def _record(
        self,
        action: str,
        advice: Advice,
        outcome: DecisionOutcome,
        *,
        note: str = "",
        reconfiguration_id: str | None = None,
    ) -> None:
        seen, choice, incident = self.seen, self.choice, self.seen.incident
        wait_s = advice.again_in_s
        record = DecisionRecord(
            id=new_id(),
            job=seen.situation.name,
            incident_id=incident.id if incident is not None else None,
            reconfiguration_id=reconfiguration_id,
            trigger=self.trigger,
            question={
                "speeds": {str(r): p for r, p in self.question.speeds.items()},
                "alive": sorted(self.question.alive),
                "old_epoch": self.question.plan.epoch,
                "horizon_s": self.question.horizon_s,
                "refined": seen.is_refined,
            },
            key=seen.key,
            action=action,
            outcome=outcome,
            reason="; ".join((*seen.aim.notes, advice.reason)),
            difference=choice.difference,
            plan=choice.plan.to_dict(),
            alternatives=choice.alternatives,
            predicted_tokens_per_s=choice.predicted_tokens_per_s,
            stay_tokens_per_s=choice.stay_tokens_per_s,
            bound_tokens_per_s=choice.bound_tokens_per_s,
            planning_s=self.planning_s,
            again_at=None if wait_s is None else self.work.now + timedelta(seconds=wait_s),
            note=note,
            created_at=self.work.now,
            closed_at=None if outcome is DecisionOutcome.OPEN else self.work.now,
        )
        await decisions.add_decision(self.work, record)
        if outcome is not DecisionOutcome.SUPERSEDED:
            await self._announce(record, wait_s)

    async def _announce(self, record: DecisionRecord, wait_s: float | None) -> None:
        body = event.DecisionMade.model_validate(
            {
                "decision_id": record.id,
                "trigger": record.trigger[:4096],
                "action": record.action,
                "reason": record.reason[:4096],
                "difference": record.difference[:4096],
                "predicted_tokens_per_s": record.predicted_tokens_per_s,
                "stay_tokens_per_s": record.stay_tokens_per_s,
                "bound_tokens_per_s": record.bound_tokens_per_s,
                "again_in_s": wait_s,
            }
        )
        await self._publish(body)

    async def _publish(self, body: event.DecisionMade | event.ModeChanged) -> None:
        situation, incident = self.seen.situation, self.seen.incident
        correlation_id = incident.correlation_id if incident is not None else ""
        await changes.publish(
            self.term, self.work, body, job=situation.name, epoch=situation.newest_epoch, correlation_id=correlation_id
        )
