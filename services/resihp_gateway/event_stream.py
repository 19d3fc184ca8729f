"""The event stream as server-sent events: `id` is the stream sequence, so that a client resumes where it was cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from resihp_bus.port import Bus, BusError, Stored
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
    """Frames of every event after `after_sequence` (None: from now on), then live ones, until closed; several at once
    when they come quickly.

    A comment goes out at once (the client knows that the stream stands) and whenever nothing was sent for
    `heartbeat_s`. Ends when `closing` is set, so that a server with open streams stops quickly.
    """
    if after_sequence is None:
        # Fixed before the first byte: what happens after a client has seen `open` is never missed.
        after_sequence = await bus.last_sequence(Kind.EVENT)
    yield f"retry: {retry_ms}\n: open\n\n".encode()
    closed = asyncio.create_task((closing or asyncio.Event()).wait())
    follower = _Follower(bus, tail, job, name, after_sequence, heartbeat_s, closed)
    try:
        async with contextlib.aclosing(follower.frames()) as source:
            async for sent in source:
                yield sent
    finally:
        closed.cancel()


class _Follower:
    """One client: on the shared tail, or on a reader of its own until it gets there."""

    def __init__(
        self,
        bus: Bus,
        tail: EventTail,
        job: str,
        name: str,
        position: int,
        heartbeat_s: float,
        closed: asyncio.Task[Any],
    ) -> None:
        self._bus, self._tail, self._job, self._name = bus, tail, job, name
        self._position = position
        self._heartbeat_s = heartbeat_s
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._sent_s = self._loop.time()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        async with self._tail.followed():
            while not self._closed.done():
                grown = self._tail.growth
                batch = self._tail.batch(self._position, self._job, self._name)
                if batch is None:
                    async with contextlib.aclosing(self._catch_up()) as source:
                        async for sent in source:
                            yield self._sending(sent)
                    if self._tail.batch(self._position, self._job, self._name) is None:
                        return  # the bus has closed
                    continue
                self._position = batch.position
                if batch.frames:
                    yield self._sending(batch.frames)
                elif not await self._until(grown):
                    yield self._sending(HEARTBEAT)

    def _sending(self, sent: bytes) -> bytes:
        self._sent_s = self._loop.time()
        return sent

    async def _until(self, happens: asyncio.Future[Any]) -> bool:
        """Wait for it, or for the end. False if a heartbeat is due first."""
        rest_s = max(0.0, self._sent_s + self._heartbeat_s - self._loop.time())
        waited: set[asyncio.Future[Any]] = {happens, self._closed}
        done, _ = await asyncio.wait(waited, timeout=rest_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    async def _catch_up(self) -> AsyncGenerator[bytes, None]:
        """From the stream itself, until the tail reaches back so far (or the server closes)."""
        source = self._bus.replay(Kind.EVENT, after_sequence=self._position, job=self._job, detail=self._name)
        pending: asyncio.Task[Stored | None] | None = None
        try:
            while True:
                pending = pending or asyncio.create_task(_next(source))
                if not await self._until(pending):
                    yield HEARTBEAT
                    continue
                if not pending.done():
                    return  # the server closes
                stored, pending = pending.result(), None
                if stored is None:
                    return
                self._position = stored.sequence
                yield frame(stored)
                if self._tail.batch(self._position, self._job, self._name) is not None:
                    return
        finally:
            if pending is not None:
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, BusError):
                    await pending
            await source.aclose()


async def _next(source: AsyncIterator[Stored]) -> Stored | None:
    """The next event, or None at the end (a task cannot end with `StopAsyncIteration`)."""
    return await anext(source, None)
