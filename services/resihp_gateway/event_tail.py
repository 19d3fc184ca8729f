"""One reader of the event stream for all who follow it from now on: each event is fetched, decoded and encoded once.

Who asks for events from before the tail began, or falls behind its end, reads the stream himself (`event_stream`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from resihp_bus.port import Bus, BusError, Stored
from resihp_gateway.event_frame import frame
from resihp_messages import Kind

KEPT = 4096


@dataclass(frozen=True)
class Item:
    """An event with its frame."""

    stored: Stored
    frame: bytes


class EventTail:
    """The newest events, kept while somebody follows."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._items: deque[Item] = deque(maxlen=KEPT)
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self._grown = asyncio.Event()
        self.begin = 0
        """Everything after this sequence is here, as far as it has happened."""

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Keep the tail while the context is open; the first follower starts it, if the bus answers."""
        self._followers += 1
        try:
            await self._start()
            yield
        finally:
            self._followers -= 1
            if not self._followers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _start(self) -> None:
        if self._task is not None and not self._task.done():
            return
        with contextlib.suppress(BusError):
            begin = await self._bus.last_sequence(Kind.EVENT)
            if self._task is None or self._task.done():  # nobody else was quicker
                self._items.clear()
                self.begin = begin
                self._task = asyncio.create_task(self._read(begin), name="event tail")

    @property
    def newest(self) -> int:
        return self._items[-1].stored.sequence if self._items else self.begin

    def after(self, sequence: int) -> list[Item] | None:
        """What follows `sequence`; None if that is no place of the tail (too old, or of another life of the stream)."""
        if self._task is None or self._task.done() or not self.begin <= sequence <= self.newest:
            return None
        found = []
        for item in reversed(self._items):
            if item.stored.sequence <= sequence:
                break
            found.append(item)
        return found[::-1]

    async def wait(self) -> None:
        """Until the tail grows, or ends."""
        await self._grown.wait()

    async def _read(self, begin: int) -> None:
        try:
            async with contextlib.aclosing(self._bus.replay(Kind.EVENT, after_sequence=begin)) as source:
                async for stored in source:
                    self._append(stored)
        finally:
            self._grown.set()

    def _append(self, stored: Stored) -> None:
        if stored.sequence <= self.newest:  # the stream was made anew: its numbers begin again
            self._items.clear()
            self.begin = stored.sequence - 1
        if len(self._items) == KEPT:
            self.begin = self._items[0].stored.sequence
        self._items.append(Item(stored, frame(stored)))
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
