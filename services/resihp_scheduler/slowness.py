"""Verdicts about slow devices become incidents; what to do about them is weighed afterwards (`decide`)."""

from __future__ import annotations

import structlog

from resihp_bus import Ack, Listener, Outcome
from resihp_messages import AnyEnvelope, event
from resihp_messages.report import HealthScores
from resihp_scheduler.aim import SLOW, open_slow
from resihp_scheduler.incidents import incident_of
from resihp_scheduler.situation import Situation, load
from resihp_scheduler.term import Term
from resihp_store import UnitOfWork, queries

log = structlog.get_logger(__name__)


async def device_slow(term: Term, envelope: AnyEnvelope, body: event.DeviceSlow) -> Outcome:
    """An incident for each living rank that is not known to be slow yet."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        await work.record_event(envelope)
        situation = await load(work.connection, envelope.job)
        if situation is None or not situation.active:
            return Ack()
        known = open_slow(await queries.incidents(work.connection, job_name=envelope.job, only_open=True))
        new = [r for r in body.verdict.ranks if r not in known and _is_same_device(situation, r, body)]
        if new:
            await work.add_incident(incident_of(work, envelope, body, new))
            log.warning("device slow", job=envelope.job, ranks=new, p=body.verdict.p)
    term.wake(envelope.job)
    return Ack()


async def device_recovered(term: Term, envelope: AnyEnvelope, body: event.DeviceRecovered) -> Outcome:
    """The incidents of these ranks are over; how far they are trusted again is a matter of their record."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        await work.record_event(envelope)
        for incident in await queries.incidents(work.connection, job_name=envelope.job, only_open=True):
            if incident.kind == SLOW and set(incident.ranks) <= set(body.verdict.ranks):
                await work.close_incident(incident.id, "recovered")
    term.wake(envelope.job)
    return Ack()


def _is_same_device(situation: Situation, rank: int, body: event.DeviceSlow) -> bool:
    """It lives, and the verdict is not about an earlier start of the rank."""
    return rank in situation.alive and body.evidence.get("start") in (None, situation.of_rank[rank].start)


async def close_lost(work: UnitOfWork, job: str, ranks: frozenset[int]) -> str:
    """Slow devices that died: their slowness is over. Returns the correlation id of the newest such incident, since a
    death that follows slowness belongs to the same story; or an empty text."""
    correlation_id = ""
    for incident in await queries.incidents(work.connection, job_name=job, only_open=True):
        if incident.kind == SLOW and set(incident.ranks) <= ranks:
            await work.close_incident(incident.id, "the device was lost")
            correlation_id = incident.correlation_id
    return correlation_id


def listener(term: Term) -> Listener:
    """For `Bus.listen`: scores only refine what verdicts have said."""

    async def hear(envelope: AnyEnvelope) -> None:
        if isinstance(envelope.body, HealthScores) and term.scores.add(envelope.job, envelope.body):
            term.wake(envelope.job)

    return hear
