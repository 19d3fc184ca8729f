"""A question with its answer: acted on, advised, kept waiting or left; and recorded with its reasons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from resihp_messages import event, new_id
from resihp_scheduler import changes, pricing
from resihp_scheduler.aim import open_slow
from resihp_scheduler.changes import Cause
from resihp_scheduler.planning import Choice
from resihp_scheduler.question import Question
from resihp_scheduler.rules.breaker import trips
from resihp_scheduler.rules.ski_rental import Advice, Offer, weigh
from resihp_scheduler.situation import ranks_text
from resihp_scheduler.term import Term
from resihp_scheduler.view import View
from resihp_store import (
    DecisionOutcome,
    DecisionRecord,
    UnitOfWork,
    decisions,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Answered:
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
            return earlier(advice.again_in_s or 0.0, again_s)
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
        if choice.stay_tokens_per_s is None or choice.gain is None:
            return Advice("act", "the plan in force cannot run")
        offer = Offer(choice.stay_tokens_per_s, choice.stay_tokens_per_s * (1.0 + choice.gain), choice.change_s)
        if self.seen.is_approved and offer.gain > 0.0:
            return Advice("act", "approved by an operator")
        return weigh(
            offer,
            horizon_s=self.question.horizon_s,
            age_s=pricing.age_s(self.seen.incidents, self.seen.now),
            left_s=self.seen.left_s,
            min_gain=self.seen.limits.min_gain,
        )

    async def _may_act(self) -> bool:
        if not self.seen.may_act or self.seen.is_approved:
            return self.seen.may_act
        acted = [d.created_at.timestamp() for d in self.seen.made if d.action == "act"]
        slow, alive = open_slow(self.seen.incidents), self.seen.situation.alive
        reason = trips(acted, len(alive & set(slow)), len(alive), self.seen.now.timestamp(), self.seen.limits.breaker)
        if not reason:
            return True
        await decisions.put_control(self.work, replace(self.seen.control, breaker=reason))
        control = self.seen.control
        body = event.ModeChanged(
            mode="advise",
            breaker_tripped=True,
            evicted=tuple(sorted(control.evicted)),
            thresholds=dict(control.thresholds),
            reason=reason,
        )
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
        weighed = frozenset(self.seen.last.question["alive"]) if self.seen.last else self.seen.alive
        if readmitted := self.seen.alive - weighed - self.question.newcomers:
            parts.append(f"{ranks_text(readmitted)} readmitted")
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


def earlier(a: float, b: float | None) -> float:
    """The sooner of two waits; None: never."""
    return a if b is None else min(a, b)
