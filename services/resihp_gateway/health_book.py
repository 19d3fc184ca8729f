"""How fast each device is, now and over the last minutes: the detector's scores, as far as their stream reaches."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

from resihp_bus.port import Bus
from resihp_messages import Kind
from resihp_messages.report import HealthScores

KEPT_SAMPLES = 600
MAX_JOBS = 64


@dataclass(frozen=True)
class HealthSample:
    """The scores of one message."""

    iteration: int
    at: datetime
    scores: HealthScores


class HealthBook:
    """Filled by one reader of the score stream, from its beginning, so that a restart of the gateway forgets nothing
    that the stream still holds."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, tuple[dict[int, float], deque[HealthSample]]] = OrderedDict()

    @asynccontextmanager
    async def following(self, bus: Bus) -> AsyncIterator[None]:
        """Keep the book while the context is open."""
        task = asyncio.create_task(self._follow(bus), name="scores")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _follow(self, bus: Bus) -> None:
        async with contextlib.aclosing(bus.replay(Kind.SCORE, after_sequence=0)) as stored:
            async for message in stored:
                if isinstance(message.envelope.body, HealthScores):
                    self.note(message.envelope.job, message.envelope.occurred_at, message.envelope.body)

    def note(self, job: str, at: datetime, scores: HealthScores) -> None:
        newest, samples = self._jobs.setdefault(job, ({}, deque(maxlen=KEPT_SAMPLES)))
        self._jobs.move_to_end(job)
        while len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)
        newest.update(zip(scores.ranks, scores.p, strict=True))
        samples.append(HealthSample(scores.iteration, at, scores))

    def newest(self, job: str) -> dict[int, float]:
        """Rank -> p of the devices that were ever judged. Do not change it."""
        known = self._jobs.get(job)
        return known[0] if known else {}

    def of_device(self, job: str, rank: int) -> list[tuple[datetime, int, float, float | None]]:
        """(time, iteration, p, confidence that it is slow), oldest first."""
        known = self._jobs.get(job)
        found = []
        for sample in known[1] if known else ():
            scores = sample.scores
            if rank in scores.ranks:
                n = scores.ranks.index(rank)
                found.append(
                    (sample.at, sample.iteration, scores.p[n], scores.confidence[n] if scores.confidence else None)
                )
        return found
