"""What operators say about the scheduler's decisions: mode, hold, approval, veto. Losses are acted on regardless."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from resihp_messages import event
from resihp_messages.request import Reply, RequestHold, RequestMode, RequestRuling
from resihp_scheduler import changes
from resihp_scheduler.asked import Asked, refused
from resihp_store import ControlRecord, DecisionMode, DecisionOutcome, DecisionRecord, decisions


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
    await _put(asked, replace(control, is_held=body.for_s != 0.0, held_until=until), body.reason, hold_s=body.for_s)
    return Reply(accepted=True)


async def _put(asked: Asked, control: ControlRecord, reason: str, *, hold_s: float | None = None) -> None:
    await decisions.put_control(asked.work, control)
    left_s = hold_s
    if left_s is None and control.held_until is not None:
        left_s = max(0.0, (control.held_until - asked.work.now).total_seconds())
    held = control.holds(asked.work.now)
    body = event.ModeChanged(
        mode=control.mode.value,
        held=held,
        hold_s=left_s if held else None,
        breaker_tripped=bool(control.breaker),
        reason=reason,
    )
    await _publish(asked, body)


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
    await _publish(asked, told)
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


async def _publish(asked: Asked, body: event.ModeChanged | event.DecisionClosed) -> None:
    situation = asked.situation
    await changes.publish(
        asked.term,
        asked.work,
        body,
        job=situation.name,
        epoch=situation.newest_epoch,
        correlation_id=asked.envelope.message_id,
    )
