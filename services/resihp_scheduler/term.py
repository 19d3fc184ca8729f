"""One term of leadership: what handlers share while this process is the leader."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from resihp_bus import Bus
from resihp_chassis import Clock
from resihp_messages import Body, Envelope
from resihp_scheduler.meter import Meter
from resihp_scheduler.metrics import SchedulerMetrics
from resihp_scheduler.scores import ScoreBook
from resihp_scheduler.settings import SchedulerSettings
from resihp_scheduler.solver import Solver
from resihp_store import Store, UnitOfWork

SOURCE = "scheduler"
B = TypeVar("B", bound=Body)


@dataclass
class Term:
    """Fixed fencing token; all writes go through `transaction`."""

    store: Store
    bus: Bus
    settings: SchedulerSettings
    clock: Clock
    metrics: SchedulerMetrics
    incarnation: str
    token: int
    renewed_s: float
    """When the last successful renewal was asked for, on our clock."""
    solver: Solver
    """The full planner; it outlives the term."""
    meter: Meter = field(default_factory=Meter)
    scores: ScoreBook = field(default_factory=ScoreBook)
    wake: Callable[[str], None] = lambda job: None
    """Think about the job soon (`desk`)."""
    deposed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set as soon as anything shows that another leader exists."""
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def transaction(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A fenced transaction; `LeadershipLost` if this term is over."""
        return self.store.transaction(self.token)

    def lock(self, job: str) -> asyncio.Lock:
        """Held from the reading of a job's state to the commit of a decision about it."""
        return self._locks[job]

    def now(self) -> datetime:
        """Time of day, to compare with times in the database."""
        return datetime.now(UTC)

    def in_force(self) -> bool:
        """Whether the lease still runs by our own clock: a process that was stopped notices it before it acts."""
        running = self.clock.monotonic() < self.renewed_s + self.settings.lease_ttl_s
        return running and not self.deposed.is_set()

    def envelope(self, body: B, *, job: str, epoch: int = 0, correlation_id: str = "") -> Envelope[B]:
        return Envelope[B].of(
            body, job=job, source=SOURCE, incarnation=self.incarnation, epoch=epoch, correlation_id=correlation_id
        )
