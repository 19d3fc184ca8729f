"""When to think about a job: at once if something happened, later if time alone changes the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from resihp_chassis import Clock
from resihp_store import LeadershipLost, StoreUnavailable

log = structlog.get_logger(__name__)

RETRY_S = 0.5
Think = Callable[[str], Awaitable[float | None]]
"""Thinks about a job; returns after how many seconds again, or None."""


class Desk:
    """`run` for the length of a term. One thought per job at a time; jobs do not wait for each other."""

    def __init__(self, think: Think, clock: Clock, on_deposed: Callable[[], None]) -> None:
        self._think, self._clock, self._on_deposed = think, clock, on_deposed
        self._due_s: dict[str, float] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    def wake(self, job: str, in_s: float = 0.0) -> None:
        """Think about the job then, or earlier if that was asked for before."""
        due_s = self._clock.monotonic() + in_s
        self._due_s[job] = min(due_s, self._due_s.get(job, due_s))
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._changed.clear()
                now_s = self._clock.monotonic()
                for job in [j for j, due_s in self._due_s.items() if due_s <= now_s and j not in self._busy]:
                    del self._due_s[job]
                    self._busy[job] = asyncio.create_task(self._work(job))
                await self._pause()
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _pause(self) -> None:
        """Until something changes, or the next job that nobody thinks about is due."""
        waiting = [due_s for job, due_s in self._due_s.items() if job not in self._busy]
        changed = asyncio.create_task(self._changed.wait())
        tasks: set[asyncio.Task[object]] = {changed}
        if waiting:
            rest_s = max(0.0, min(waiting) - self._clock.monotonic())
            tasks.add(asyncio.create_task(self._clock.sleep(rest_s)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, job: str) -> None:
        again_s: float | None = None
        try:
            again_s = await self._think(job)
        except LeadershipLost:
            self._on_deposed()
        except StoreUnavailable as error:
            log.warning("database not available", error=str(error))
            again_s = RETRY_S
        except Exception:  # one job's trouble must not end the term of all
            log.exception("a decision failed", job=job)
            again_s = 10 * RETRY_S
        finally:
            with contextlib.suppress(KeyError):
                del self._busy[job]
            self._changed.set()
        if again_s is not None:
            self.wake(job, again_s)
