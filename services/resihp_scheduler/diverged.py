"""Replicas that differ: all ranks go back to a state that they agreed on and redo what follows.

That repairs whoever was damaged, and then the detector can tell who it was (docs/protocol.md, claim 9).
"""

from __future__ import annotations

import structlog

from resihp_bus import Ack, Outcome
from resihp_messages import AnyEnvelope, event
from resihp_scheduler.changes import DIVERGED
from resihp_scheduler.losses import fault_of, renew, take_up
from resihp_scheduler.phases import Outcome as Applied
from resihp_scheduler.situation import Situation, ranks_text
from resihp_scheduler.term import Term
from resihp_store import DecisionMode, IncidentRecord, UnitOfWork, decisions, queries

log = structlog.get_logger(__name__)

ONLY_REPORTED = "only reported"
"""How the resolution begins of an incident that had no answer. Others had one, and it is not tried twice."""


async def state_diverged(term: Term, envelope: AnyEnvelope, body: event.StateDiverged) -> Outcome:
    """The same layout in a new epoch, from an older state; or an incident that says why not."""
    received_s = term.clock.monotonic()
    async with term.lock(envelope.job), term.transaction() as work:
        situation = await take_up(work, envelope)
        if situation is None:  # also if it is another part of the model, of the same fault
            return Ack()
        fault = fault_of(envelope, body, envelope.job, envelope.message_id)
        agreed = body.evidence.get("agreed_iteration")
        hindrance = await _hindrance(work, situation, agreed)
        if hindrance:
            incident = fault.incident(work)
            await work.add_incident(incident)
            await work.close_incident(incident.id, f"{ONLY_REPORTED}: {hindrance}")
            log.warning("replicas differ", job=envelope.job, ranks=sorted(fault.ranks), only_reported=hindrance)
            return Ack()
        answer = f"go back to a state not newer than iteration {agreed}, after which they agreed"
        await renew(term, work, situation, fault, answer, 1, received_s)
    log.warning("replicas differ", job=envelope.job, ranks=sorted(fault.ranks), back_to=agreed)
    return Ack()


async def _hindrance(work: UnitOfWork, situation: Situation, agreed: object) -> str:
    """Why the job does not go back; empty if it does."""
    control = await decisions.control(work.connection, situation.name)
    if control.mode is not DecisionMode.ACT:
        return f"the job's mode is {control.mode}"
    if control.holds(work.now):
        return "changes are on hold"
    if not isinstance(agreed, int):
        return "they were never seen to agree"
    if not situation.spec.can_roll_back:
        return "the job keeps no copies of its state"
    incidents = await queries.incidents(work.connection, job_name=situation.name)
    before = [i for i in incidents if i.kind == DIVERGED and not i.resolution.startswith(ONLY_REPORTED)]
    if any(i.evidence.get("agreed_iteration") == agreed for i in before):
        return f"they still differ after a return to where they agreed, iteration {agreed}"
    return ""


def resolution(incident: IncidentRecord, change: str, applied: Applied) -> str:
    """What became of an incident that a recovery answered."""
    if incident.kind != DIVERGED:
        return f"repaired by {change}"
    if applied.state_source == "live":
        return f"not repaired by {change}: no copy of the state is old enough"
    return f"repaired by {change}: {applied.lost_iterations} iterations redone from a {applied.state_source}"


async def state_corrupted(term: Term, envelope: AnyEnvelope, body: event.StateCorrupted) -> Outcome:
    """The incident gets the name of the rank that was damaged."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        await work.record_event(envelope)
        incidents = await queries.incidents(work.connection, job_name=envelope.job)
        incident = next((i for i in reversed(incidents) if i.kind == DIVERGED), None)
        if incident is not None:
            found = f"{ranks_text(body.verdict.ranks)} held the damaged state"
            await work.name_culprits(
                incident.id,
                ranks=body.verdict.ranks,
                evidence={**incident.evidence, **body.evidence, "ranks": list(incident.ranks)},
                verdict=body.verdict.model_dump(mode="json"),
                advice=body.advice,
                resolution="; ".join(text for text in (incident.resolution, found) if text),
            )
    return Ack()
