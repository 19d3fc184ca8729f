"""What operators say about the scheduler's decisions: mode, hold, approval, veto. Losses are acted on regardless."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from resihp_messages import event
from resihp_messages.request import (
    Reply,
    RequestHold,
    RequestMode,
    RequestReadmit,
    RequestRuling,
    RequestThreshold,
)
from resihp_scheduler import changes
from resihp_scheduler.asked import Asked, refused
from resihp_scheduler.situation import Situation, ranks_text
from resihp_scheduler.term import Term
from resihp_store import ControlRecord, DecisionMode, DecisionOutcome, DecisionRecord, UnitOfWork, decisions


async def set_mode(asked: Asked) -> Reply:
    """act, advise or off; a person who sets it has looked, so a tripped breaker is reset."""
    body = asked.envelope.body
    assert isinstance(body, RequestMode)
    control = await decisions.control(asked.work.connection, asked.situation.name)
    await _put(asked, replace(control, mode=DecisionMode(body.mode), breaker=""), body.reason)
    return Reply(accepted=True)


async def set_hold(asked: Asked) -> Reply:
    """Pause, protect for some seconds, or lift."""
    body = asked.envelope.body
    assert isinstance(body, RequestHold)
    control = await decisions.control(asked.work.connection, asked.situation.name)
    until = asked.work.now + timedelta(seconds=body.for_s) if body.for_s else None
    await _put(asked, replace(control, is_held=body.for_s != 0.0, held_until=until), body.reason)
    return Reply(accepted=True)


async def readmit(asked: Asked) -> Reply:
    """Evicted devices may be used again; a plan with them is weighed under the usual rules."""
    body = asked.envelope.body
    assert isinstance(body, RequestReadmit)
    control = await decisions.control(asked.work.connection, asked.situation.name)
    if others := set(body.ranks) - control.evicted:
        known = f"evicted: {ranks_text(control.evicted) if control.evicted else 'none'}"
        return refused(f"not evicted: {ranks_text(others)}; {known}")
    await _put(asked, replace(control, evicted=control.evicted - set(body.ranks)), body.reason)
    return Reply(accepted=True)


async def set_threshold(asked: Asked) -> Reply:
    """Change one number of the rules, or go back to its default."""
    body = asked.envelope.body
    assert isinstance(body, RequestThreshold)
    control = await decisions.control(asked.work.connection, asked.situation.name)
    changed = {name: value for name, value in control.thresholds.items() if name != body.name}
    if body.value is not None:
        changed[body.name] = body.value
    await _put(asked, replace(control, thresholds=changed), body.reason)
    return Reply(accepted=True)


async def _put(asked: Asked, control: ControlRecord, reason: str) -> None:
    await put(asked.term, asked.work, asked.situation, control, reason, asked.envelope.message_id)


async def put(
    term: Term, work: UnitOfWork, situation: Situation, control: ControlRecord, reason: str, correlation_id: str
) -> None:
    """Write how the job is governed, and say so."""
    await decisions.put_control(work, control)
    held, until = control.holds(work.now), control.held_until
    body = event.ModeChanged(
        mode=control.mode.value,
        held=held,
        hold_s=max(0.0, (until - work.now).total_seconds()) if held and until is not None else None,
        breaker_tripped=bool(control.breaker),
        evicted=tuple(sorted(control.evicted)),
        thresholds=dict(control.thresholds),
        reason=reason[:4096],
    )
    epoch = situation.newest_epoch
    await changes.publish(term, work, body, job=situation.name, epoch=epoch, correlation_id=correlation_id)


async def rule(asked: Asked) -> Reply:
    """Approve or veto an open decision. An approved one is weighed once more before its plan is issued, so that it
    fits the job as it is by then; a vetoed question is not answered again until speeds or devices change."""
    body = asked.envelope.body
    assert isinstance(body, RequestRuling)
    found = await _open(asked, body.decision_id)
    if isinstance(found, str):
        return refused(found)
    is_yes = body.ruling == "approve"
    outcome = DecisionOutcome.APPROVED if is_yes else DecisionOutcome.VETOED
    await decisions.close_decision(asked.work, found.id, outcome, body.reason)
    told = event.DecisionClosed(decision_id=found.id, outcome="approved" if is_yes else "vetoed", reason=body.reason)
    epoch = asked.situation.newest_epoch
    await changes.publish(
        asked.term, asked.work, told, job=asked.situation.name, epoch=epoch, correlation_id=asked.envelope.message_id
    )
    return Reply(accepted=True, decision_id=found.id)


async def _open(asked: Asked, decision_id: str | None) -> DecisionRecord | str:
    """The decision to rule on, or why there is none."""
    connection, job = asked.work.connection, asked.situation.name
    if decision_id is not None:
        found = await decisions.decision(connection, decision_id)
        if found is None or found.job != job:
            return f"job {job!r} has no decision {decision_id}"
        if found.outcome is not DecisionOutcome.OPEN:
            return f"decision {decision_id} is {found.outcome}, not open"
        return found
    waiting = await decisions.decisions(connection, job, outcome=DecisionOutcome.OPEN, newest_first=True, limit=1)
    return waiting[0] if waiting else f"job {job!r} has no open decision"
