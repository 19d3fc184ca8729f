"""Publishing without waiting: reports and scores go into a bounded queue and from there over core NATS."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

import nats.errors

from resihp_bus.delivery import log
from resihp_bus.stats import BusStats, RateLimit
from resihp_bus.tasks import being_cancelled

Send = Callable[[str, bytes, str], Awaitable[None]]


class Outbound:
    """Holds at most `limit` messages while the connection is down; drops the oldest first, and counts them."""

    def __init__(self, send: Send, is_up: Callable[[], bool], *, stats: BusStats, limit: int) -> None:
        self._send = send
        self._is_up = is_up
        self._stats = stats
        self._limit = limit
        self._items: deque[tuple[str, bytes, str]] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._rate = RateLimit()
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, subject: str, raw: bytes, message_id: str) -> None:
        """Never blocks, never raises."""
        if len(self._items) >= self._limit:
            self._items.popleft()
            self._drop("queue full")
        self._items.append((subject, raw, message_id))
        self._idle.clear()
        self._wake.set()

    def wake(self) -> None:
        """The connection is up again."""
        self._wake.set()

    async def stop(self, timeout_s: float) -> None:
        """Send what is left if that is possible within `timeout_s`, then end."""
        if self._is_up() and not self._task.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_s)
        self._stopping = True
        self._wake.set()
        await asyncio.wait({self._task}, timeout=timeout_s)
        self._task.cancel()  # the client may swallow a cancellation, so it is not what the end relies on
        for _ in range(len(self._items)):
            self._items.pop()
            self._drop("closed")

    async def _run(self) -> None:
        while not (self._stopping or being_cancelled()):
            await self._wake.wait()
            self._wake.clear()
            while self._items and self._is_up() and not self._stopping:
                subject, raw, message_id = self._items.popleft()
                try:
                    await self._send(subject, raw, message_id)
                    self._stats.published += 1
                except nats.errors.Error as error:  # OutboundBufferLimitError above all
                    self._drop(type(error).__name__)
            if not self._items:
                self._idle.set()

    def _drop(self, reason: str) -> None:
        self._stats.dropped += 1
        silent = self._rate.allow(reason)
        if silent is not None:
            log.warning("message dropped", reason=reason, more_since_last_line=silent)
