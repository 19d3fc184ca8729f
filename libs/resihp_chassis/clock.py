"""Time as the rooms see it: passed in, so that tests own it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds. Wall time is for people only and never measured with."""

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps; only differences mean something."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""


class SystemClock:
    """The machine's CLOCK_MONOTONIC: equal in all processes of a host, so that agents and workers can compare."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """Stands still until `advance`: for tests of timeouts.

    >>> clock = ManualClock(10.0)
    >>> asyncio.run(clock.advance(2.5))
    >>> clock.monotonic()
    12.5
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        due = asyncio.Event()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), due))
        await due.wait()

    async def advance(self, seconds: float) -> None:
        """Move time on, waking sleepers in order; each may sleep again before the next one is due."""
        end = self._now + seconds
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._now, _, due = heapq.heappop(self._sleepers)
            due.set()
            await _settle()
        self._now = end
        await _settle()


async def _settle() -> None:
    """Let tasks that were woken run until they wait again (bounded: they may wake each other a few times)."""
    for _ in range(10):
        await asyncio.sleep(0)
