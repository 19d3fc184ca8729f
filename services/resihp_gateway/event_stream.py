"""The event stream as server-sent events: `id` is the stream sequence, so that a client resumes where it was cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from resihp_bus.port import Bus, BusError, Stored
from resihp_gateway.models import EventView
from resihp_messages import Kind

HEARTBEAT = b": heartbeat\n\n"
"""A comment line: clients ignore it, but its absence tells them that the server hangs."""


async def event_stream(
    bus: Bus,
    *,
    job: str,
    name: str,
    after_sequence: int | None,
    heartbeat_s: float,
    retry_ms: int = 1000,
    closing: asyncio.Event | None = None,
) -> AsyncIterator[bytes]:
    """Frames of every event after `after_sequence` (None: from now on), then live ones, until closed.

    A comment goes out at once (the client knows that the stream stands) and whenever nothing happened for
    `heartbeat_s`. Ends when `closing` is set, so that a server with open streams stops quickly.
    """
    if after_sequence is None:
        # Fixed before the first byte: what happens after a client has seen `open` is never missed.
        after_sequence = await bus.last_sequence(Kind.EVENT)
    yield f"retry: {retry_ms}\n: open\n\n".encode()
    source = bus.replay(Kind.EVENT, after_sequence=after_sequence, job=job, detail=name)
    closed = asyncio.create_task(closing.wait()) if closing is not None else None
    pending: asyncio.Task[Stored | None] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.create_task(_next(source))
            waited: set[asyncio.Task[Any]] = {pending} if closed is None else {pending, closed}
            done, _ = await asyncio.wait(waited, timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
            if closed is not None and closed in done:
                return
            if pending not in done:
                yield HEARTBEAT
                continue
            stored, pending = pending.result(), None
            if stored is None:
                return
            yield frame(stored)
    finally:
        for task in (pending, closed):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, BusError):
                    await task
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


async def _next(source: AsyncIterator[Stored]) -> Stored | None:
    """The next message, or None at the end (a task cannot end with `StopAsyncIteration`)."""
    return await anext(source, None)


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
