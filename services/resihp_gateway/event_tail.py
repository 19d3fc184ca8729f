"""One reader of the event stream for all who follow it from now on: each event is fetched, decoded and encoded once,
and what several followers need next is joined once.

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
PACE_S = 0.1
"""Followers are woken at most this often: a lone event goes out at once, the next ones together."""


@dataclass(frozen=True)
class Item:
    """An event with its frame."""

    sequence: int
    job: str
    name: str
    frame: bytes


@dataclass(frozen=True)
class Batch:
    """What one follower gets next: `frames` may be empty if its filter lets nothing pass."""

    frames: bytes
    position: int
    """Where the follower stands afterwards."""


class EventTail:
    """The newest events, kept while somebody follows."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._items: deque[Item] = deque(maxlen=KEPT)
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self._growth: asyncio.Future[None] | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._told_s = 0.0
        self._batches: dict[tuple[int, str, str], Batch] = {}
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
                self._batches.clear()
                self.begin = begin
                self._task = asyncio.create_task(self._read(begin), name="event tail")

    @property
    def newest(self) -> int:
        return self._items[-1].sequence if self._items else self.begin

    @property
    def growth(self) -> asyncio.Future[None]:
        """Done once the tail has grown, or ended. Take it before you look, so that nothing falls between."""
        if self._growth is None or self._growth.done():
            self._growth = asyncio.get_running_loop().create_future()
        return self._growth

    def batch(self, position: int, job: str, name: str) -> Batch | None:
        """What follows `position` (`*`: any job or name); None if that is no place of the tail (too old, or of another
        life of the stream)."""
        if self._task is None or self._task.done() or not self.begin <= position <= self.newest:
            return None
        key = (position, job, name)
        if key not in self._batches:
            self._batches[key] = Batch(b"".join(self._frames(*key)[::-1]), self.newest)
        return self._batches[key]

    def _frames(self, position: int, job: str, name: str) -> list[bytes]:
        """Newest first: most followers miss only a few."""
        found = []
        for item in reversed(self._items):
            if item.sequence <= position:
                break
            if job in ("*", item.job) and name in ("*", item.name):
                found.append(item.frame)
        return found

    async def _read(self, begin: int) -> None:
        try:
            async with contextlib.aclosing(self._bus.replay(Kind.EVENT, after_sequence=begin)) as source:
                async for stored in source:
                    self._append(stored)
        finally:
            if self._telling is not None:
                self._telling.cancel()
            self._tell()

    def _append(self, stored: Stored) -> None:
        if stored.sequence <= self.newest:  # the stream was made anew: its numbers begin again
            self._items.clear()
            self.begin = stored.sequence - 1
        if len(self._items) == KEPT:
            self.begin = self._items[0].sequence
        envelope = stored.envelope
        name = envelope.schema_.partition(".")[0]
        self._items.append(Item(stored.sequence, envelope.job, name, frame(stored)))
        self._batches.clear()
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(max(0.0, self._told_s + PACE_S - loop.time()), self._tell)

    def _tell(self) -> None:
        self._telling = None
        self._told_s = asyncio.get_running_loop().time()
        if self._growth is not None and not self._growth.done():
            self._growth.set_result(None)
