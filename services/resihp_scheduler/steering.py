"""Changes of plan that a person asks for: planned at once, answered when they are on their way, done in every mode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from resihp_messages import AnyEnvelope, new_id
from resihp_messages.request import Reply
from resihp_scheduler import changes, governing, pricing
from resihp_scheduler.asked import Answer, keep, known_reply, not_running, refused
from resihp_scheduler.changes import Cause
from resihp_scheduler.pace import Observed, observed
from resihp_scheduler.planning import Choice, JobPlanning, NoPlan
from resihp_scheduler.question import key_of
from resihp_scheduler.situation import Situation, load
from resihp_scheduler.term import Term
from resihp_store import (
    ControlRecord,
    DecisionOutcome,
    DecisionRecord,
    JobState,
    UnitOfWork,
    decisions,
)


@dataclass(frozen=True)
class Steered:
    """A request about the plan of a running job, with no other change under way."""

    term: Term
    situation: Situation
    control: ControlRecord
    observed: Observed | None
    envelope: AnyEnvelope

    @property
    def planning(self) -> JobPlanning:
        return JobPlanning(self.situation.spec, pricing.calibration_of(self.control), self.observed)


@dataclass(frozen=True)
class Wanted:
    """What to do about it."""

    reason: str
    choice: Choice | None = None
    """None: the plan may stay as it is."""
    control: ControlRecord | None = None
    """Written together with the change."""
    verb: str = ""
    """If given, the question counts as answered: the rules do not take the change back."""


Choose = Callable[[Steered], Awaitable[Wanted | NoPlan]]


def steer(choose: Choose) -> Answer:
    """Frame `choose`: one change at a time, planned under the job's lock, issued in one transaction with its cause."""

    async def answer(term: Term, envelope: AnyEnvelope) -> Reply:
        received_s = term.clock.monotonic()
        async with term.lock(envelope.job):
            async with term.store.read() as connection:
                situation = await load(connection, envelope.job)
                control = await decisions.control(connection, envelope.job)
                seen = await observed(connection, situation, control) if situation is not None else None
            if situation is None or situation.job.state is not JobState.RUNNING:
                return refused(not_running(envelope.job, situation))
            if situation.spec.attached is not None:
                return refused(f"job {envelope.job!r} was launched by somebody else: its layout is not ours to change")
            asked = Steered(term, situation, control, seen, envelope)
            wanted = await choose(asked) if situation.open is None else _busy(situation)
            async with term.transaction() as work:
                if (known := await known_reply(work, envelope)) is not None:
                    return known
                if isinstance(wanted, NoPlan):
                    is_busy = situation.open is not None
                    return Reply(accepted=False, reason=wanted.reason[:4096], temporary=is_busy)
                plan_s = term.clock.monotonic() - received_s
                reply = await _carry_out(asked, work, wanted, plan_s)
                await keep(term, work, envelope, reply)
        term.wake(envelope.job)
        return reply

    return answer


def _busy(situation: Situation) -> NoPlan:
    change = situation.open
    assert change is not None
    return NoPlan(f"a {change.mode} change to epoch {change.new_epoch} is under way; try again after it")


async def _carry_out(asked: Steered, work: UnitOfWork, wanted: Wanted, plan_s: float) -> Reply:
    if wanted.control is not None:
        await governing.put(asked.term, work, asked.situation, wanted.control, wanted.reason, asked.envelope.message_id)
    identifier = None
    if wanted.choice is not None:
        cause = Cause("planned", wanted.reason, correlation_id=asked.envelope.message_id, plan_s=plan_s)
        identifier = await changes.issue(asked.term, work, asked.situation, wanted.choice, cause)
        if wanted.verb:
            await _record(asked, work, wanted, wanted.choice, identifier, plan_s)
    return Reply(accepted=True, reconfiguration_id=identifier)


async def _record(
    asked: Steered, work: UnitOfWork, wanted: Wanted, choice: Choice, identifier: str, plan_s: float
) -> None:
    """Among the decisions, as the answer to the question that these devices and speeds are."""
    situation, control = asked.situation, wanted.control or asked.control
    usable, speeds = situation.alive - control.evicted, situation.speeds
    record = DecisionRecord(
        id=new_id(),
        job=situation.name,
        incident_id=None,
        reconfiguration_id=identifier,
        trigger="operator",
        question={
            "speeds": {str(r): p for r, p in speeds.items()},
            "alive": sorted(usable),
            "old_epoch": situation.plan_in_force().epoch,
        },
        key=key_of(usable, speeds, control.thresholds),
        action=wanted.verb,
        outcome=DecisionOutcome.ACTED,
        reason=wanted.reason,
        difference=choice.difference,
        plan=choice.plan.to_dict(),
        alternatives=choice.alternatives,
        predicted_tokens_per_s=choice.predicted_tokens_per_s,
        stay_tokens_per_s=choice.stay_tokens_per_s,
        bound_tokens_per_s=choice.bound_tokens_per_s,
        planning_s=plan_s,
        again_at=None,
        note="",
        created_at=work.now,
        closed_at=work.now,
    )
    waiting = await decisions.decisions(work.connection, situation.name, outcome=DecisionOutcome.OPEN)
    for old in waiting:
        await decisions.close_decision(
            work, old.id, DecisionOutcome.SUPERSEDED, f"overtaken by an operator: {wanted.verb}"
        )
    await decisions.add_decision(work, record)
