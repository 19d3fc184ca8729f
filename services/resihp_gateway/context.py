"""What every route needs: the bus, the database, the newest beats, and who we are on the wire."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from resihp_bus.port import Bus
from resihp_gateway.beats import NewestBeats
from resihp_gateway.problems import ApiError
from resihp_messages import AnyEnvelope, Body, Envelope
from resihp_messages.request import Reply
from resihp_store import JobRecord, Store, queries


@dataclass(frozen=True)
class Gateway:
    """Shared by all requests of one app."""

    bus: Bus
    store: Store
    beats: NewestBeats
    incarnation: str
    request_timeout_s: float
    heartbeat_s: float
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: open event streams end."""

    async def require_job(self, job: str) -> JobRecord:
        """The job's record. Raises `ApiError` 404."""
        async with self.store.read() as connection:
            record = await queries.job(connection, job)
        if record is None:
            raise ApiError(404, f"there is no job {job!r}")
        return record

    async def ask(self, body: Body, *, job: str) -> Reply:
        """Send a request to the scheduler's leader. Raises `ApiError` 409 if it refuses, `BusUnavailable` if nobody
        answers in time (then it is not known whether the request will be carried out)."""
        verb = type(body).schema_name.partition(".")[0]
        envelope: AnyEnvelope = Envelope.of(body, job=job, source="gateway", incarnation=self.incarnation)
        answer = await self.bus.request(envelope, detail=verb, timeout_s=self.request_timeout_s)
        if not isinstance(answer.body, Reply):
            raise ApiError(503, f"the scheduler answered with {answer.schema_}")
        if not answer.body.accepted:
            raise ApiError(503 if answer.body.temporary else 409, answer.body.reason or "the scheduler refused")
        return answer.body


def _gateway(request: Request) -> Gateway:
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


GatewayDep = Annotated[Gateway, Depends(_gateway)]
