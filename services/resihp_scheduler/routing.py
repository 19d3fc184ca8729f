"""Which handler gets which message. Anything else that passes by is only put into the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from resihp_bus import Ack, Handler, Outcome, Retry
from resihp_messages import AnyEnvelope, Body, Kind, ack, event
from resihp_scheduler import attached, diverged, fleet, losses, progress, slowness
from resihp_scheduler.term import SOURCE, Term
from resihp_store import LeadershipLost, StoreUnavailable

log = structlog.get_logger(__name__)

BUSY_S = 0.2
"""After a failed transaction the same message is tried again this much later."""

Handle = Callable[[Term, AnyEnvelope, Any], Awaitable[Outcome]]

HANDLERS: Mapping[type[Body], Handle] = {
    event.NodeJoined: fleet.node_joined,
    event.NodeLeft: fleet.node_left,
    event.WorkerLost: losses.devices_lost,
    event.WorkerFrozen: losses.devices_lost,
    event.NodeLost: losses.devices_lost,
    event.LinkLost: losses.link_lost,
    event.StateDiverged: diverged.state_diverged,
    event.StateCorrupted: diverged.state_corrupted,
    event.WorkersAttached: attached.workers_attached,
    event.WorkerResumed: attached.worker_resumed,
    event.JobHung: attached.job_hung,
    event.DeviceSlow: slowness.device_slow,
    event.DeviceRecovered: slowness.device_recovered,
    ack.WorkersStarted: progress.workers_started,
    ack.PlanPrepared: progress.plan_acknowledged,
    ack.PlanApplied: progress.plan_acknowledged,
    ack.IterationResumed: progress.plan_acknowledged,
    ack.PlanRejected: progress.plan_rejected,
    ack.WorkerFinished: progress.worker_finished,
    ack.WorkerFailed: progress.worker_failed,
}


async def route(term: Term, envelope: AnyEnvelope) -> Outcome:
    body = envelope.body
    handle = HANDLERS.get(type(body))
    if handle is not None:
        return await handle(term, envelope, body)
    if body.kind is Kind.EVENT and envelope.source != SOURCE:  # our own ones are in the log since their commit
        async with term.transaction() as work:
            await work.record_event(envelope)
    return Ack()


def handler(term: Term) -> Handler:
    """For `Bus.consume`: the acknowledgement follows the commit; a deposed leader acknowledges nothing."""

    async def handle(envelope: AnyEnvelope) -> Outcome:
        if term.deposed.is_set():
            return Retry(BUSY_S)
        try:
            return await route(term, envelope)
        except LeadershipLost:
            term.deposed.set()
        except StoreUnavailable as error:
            log.warning("database not available", error=str(error), schema=envelope.schema_)
        return Retry(BUSY_S)

    return handle
