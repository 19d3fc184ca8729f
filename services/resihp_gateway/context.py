"""What every route needs: the bus, the database, the newest beats and scores, and who we are on the wire."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import structlog
from fastapi import Depends, Request

from resihp_bus.port import Bus, BusError
from resihp_gateway.access import Identity
from resihp_gateway.beats import NewestBeats
from resihp_gateway.event_tail import EventTail
from resihp_gateway.health_book import HealthBook
from resihp_gateway.problems import ApiError
from resihp_gateway.whatif import MAX_PARALLEL
from resihp_messages import AnyEnvelope, Body, Envelope
from resihp_messages.event import ActionAnswered, ActionRequested
from resihp_messages.request import Reply
from resihp_store import JobRecord, Store, queries

MAX_PARAMETER_CHARS = 2000
_log = structlog.get_logger("gateway")


@dataclass(frozen=True)
class Gateway:
    """Shared by all requests of one app."""

    bus: Bus
    store: Store
    beats: NewestBeats
    incarnation: str
    request_timeout_s: float
    heartbeat_s: float
    whatif_timeout_s: float = 30.0
    whatif_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_PARALLEL))
    health: HealthBook = field(default_factory=HealthBook)
    tail: EventTail = field(init=False)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: open event streams end."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tail", EventTail(self.bus))

    async def require_job(self, job: str) -> JobRecord:
        """The job's record. Raises `ApiError` 404."""
        async with self.store.read() as connection:
            record = await queries.job(connection, job)
        if record is None:
            raise ApiError(404, f"there is no job {job!r}")
        return record

    async def ask(self, body: Body, *, job: str, by: Identity) -> Reply:
        """Send a request to the scheduler's leader, and leave an audit trail in the event stream: that it was asked is
        stored before it is sent, what came of it afterwards.

        Raises `ApiError` 409 if it is refused, `BusUnavailable` if the trail cannot be written (then nothing was sent)
        or nobody answers in time (then it is not known whether the request will be carried out).
        """
        verb = type(body).schema_name.partition(".")[0]
        envelope: AnyEnvelope = Envelope.of(body, job=job, source="gateway", incarnation=self.incarnation)
        trail = envelope.message_id
        asked = ActionRequested(
            action=verb,
            actor=by.name,
            role=str(by.role),
            client=by.client,
            reason=str(getattr(body, "reason", "")),
            parameters=_parameters(body),
        )
        await self.bus.publish(self._event(asked, job, trail), detail="ActionRequested")
        try:
            reply = (await self.bus.request(envelope, detail=verb, timeout_s=self.request_timeout_s)).body
        except BusError as error:
            await self._answered(
                ActionAnswered(action=verb, actor=by.name, accepted=False, detail=f"no answer: {error}"), job, trail
            )
            raise
        if not isinstance(reply, Reply):
            raise ApiError(503, f"the scheduler answered with {type(reply).schema_name}")
        outcome = ActionAnswered(
            action=verb,
            actor=by.name,
            accepted=reply.accepted,
            detail=reply.reason,
            reconfiguration_id=reply.reconfiguration_id,
        )
        await self._answered(outcome, job, trail)
        if not reply.accepted:
            raise ApiError(503 if reply.temporary else 409, reply.reason or "the scheduler refused")
        return reply

    async def _answered(self, outcome: ActionAnswered, job: str, trail: str) -> None:
        """The deed is done: a bus that fails now must not turn the answer into an error."""
        try:
            await self.bus.publish(self._event(outcome, job, trail), detail="ActionAnswered")
        except BusError as error:
            _log.warning("outcome of an action not stored", action=outcome.action, error=str(error))

    def _event(self, body: Body, job: str, trail: str) -> AnyEnvelope:
        return Envelope.of(body, job=job, source="gateway", incarnation=self.incarnation, correlation_id=trail)


def _parameters(body: Body) -> dict[str, Any]:
    """What was asked for; long parts (a whole plan) by their digest: the plan itself is in the history."""
    found = body.model_dump(mode="json", exclude={"reason"})
    for key, value in found.items():
        text = json.dumps(value, sort_keys=True)
        if len(text) > MAX_PARAMETER_CHARS:
            found[key] = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "size_bytes": len(text)}
    return found


def _gateway(request: Request) -> Gateway:
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


GatewayDep = Annotated[Gateway, Depends(_gateway)]
