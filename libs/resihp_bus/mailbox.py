"""A bounded queue with one worker: live messages are handled in order without stalling the connection's reader."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from resihp_bus.delivery import log
from resihp_bus.stats import BusStats
from resihp_bus.tasks import being_cancelled

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items go in without waiting (the oldest is dropped when full) and are handled one at a time."""

    def __init__(self, handle: Callable[[T], Awaitable[None]], *, stats: BusStats, limit: int = 4096) -> None:
        self._handle = handle
        self._stats = stats
        self._limit = limit
        self._items: deque[T] = deque()
        self._wake = asyncio.Event()
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, item: T) -> None:
        """Never blocks, never raises."""
        if self._stopping:
            return
        if len(self._items) >= self._limit:
            self._items.popleft()
            self._stats.dropped += 1
        self._items.append(item)
        self._wake.set()

    async def stop(self) -> None:
        """Take no more items and wait for the one in progress. Idempotent; safe to call from the handler itself."""
        self._stopping = True
        self._items.clear()
        self._wake.set()
        if asyncio.current_task() is not self._task:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({self._task})

    async def _run(self) -> None:
        while not (self._stopping or being_cancelled()):
            if not self._items:
                self._wake.clear()
                await self._wake.wait()
                continue
            item = self._items.popleft()
            try:
                await self._handle(item)
            except Exception:  # border: a listener's bug must not end the subscription
                self._stats.handler_errors += 1
                log.exception("listener failed")
