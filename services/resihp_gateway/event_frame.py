"""One stored event as the API shows it, and as a server-sent event."""

from __future__ import annotations

import json

from resihp_bus.port import Stored
from resihp_gateway.models import EventView


def frame(stored: Stored) -> bytes:
    """One event as `id`, `event` and `data` lines; JSON has no line breaks, so one data line is enough."""
    event = view(stored)
    data = json.dumps(event.model_dump(mode="json"), separators=(",", ":"))
    return f"id: {stored.sequence}\nevent: {event.name}\ndata: {data}\n\n".encode()


def view(stored: Stored) -> EventView:
    envelope = stored.envelope
    return EventView(
        sequence=stored.sequence,
        message_id=envelope.message_id,
        name=envelope.schema_.partition(".")[0],
        job=envelope.job,
        epoch=envelope.epoch,
        source=envelope.source,
        correlation_id=envelope.correlation_id,
        occurred_at=envelope.occurred_at,
        body=envelope.body.model_dump(mode="json"),
    )
