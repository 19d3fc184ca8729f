"""The event stream as server-sent events: `id` is the stream sequence, so that a client resumes where it was cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from resihp_bus.port import Bus, BusError
from resihp_gateway.event_frame import frame
from resihp_gateway.event_tail import EventTail
from resihp_messages import Kind

HEARTBEAT = b": heartbeat\n\n"
"""A comment line: clients ignore it, but its absence tells them that the server hangs."""


async def event_stream(
    bus: Bus,
    tail: EventTail,
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
    source = _follow(bus, tail, job, name, after_sequence)
    closed = asyncio.create_task(closing.wait()) if closing is not None else None
    pending: asyncio.Task[bytes | None] | None = None
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
            sent, pending = pending.result(), None
            if sent is None:
                return
            yield sent
    finally:
        for task in (pending, closed):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, BusError):
                    await task
        await source.aclose()


async def _follow(bus: Bus, tail: EventTail, job: str, name: str, position: int) -> AsyncGenerator[bytes, None]:
    """Frames after `position`: from the shared tail if it reaches back so far, else from the stream until it does."""
    async with tail.followed():
        while True:
            items = tail.after(position)
            if items is None:
                source = bus.replay(Kind.EVENT, after_sequence=position, job=job, detail=name)
                async with contextlib.aclosing(source):
                    async for stored in source:
                        position = stored.sequence
                        yield frame(stored)
                        if tail.after(position) is not None:
                            break
                    else:
                        return
                continue
            for item in items:
                position = item.stored.sequence
                envelope = item.stored.envelope
                if job in ("*", envelope.job) and name in ("*", envelope.schema_.partition(".")[0]):
                    yield item.frame
            if not items:
                await tail.wait()


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    """The next frame, or None at the end (a task cannot end with `StopAsyncIteration`)."""
    return await anext(source, None)
