"""A running job of many devices, played: rows in the database, and beats, scores and iterations that keep coming.

Nobody trains. What the gateway reads is what it reads of a real job of that size.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from resihp_bus import Bus
from resihp_messages import FLEET, Envelope, JobSpec
from resihp_messages.report import HealthScores, NodeBeat, WorkerBeat
from resihp_plan import Cluster, ModelSpec, ParallelPlan
from resihp_plan.planner import plan_initial
from resihp_store import (
    DeviceRecord,
    DeviceState,
    IterationRecord,
    JobState,
    NodeRecord,
    NodeState,
    PlanRecord,
    Store,
    UnitOfWork,
)

JOB = "big"
PER_NODE = 8
LAYERS = 80
TP, PP = 8, 16
PAST = 500
"""Iterations committed before anybody looks."""


@dataclass
class BigJob:
    """TP 8 x PP 16 x as many replicas as there is room for. One tick is one iteration."""

    num_devices: int
    bus: Bus
    store: Store
    changing: float
    """Share of the devices whose colour changes with every tick."""
    iteration: int = PAST
    slow: set[int] = field(default_factory=set)
    random: random.Random = field(default_factory=lambda: random.Random(3))

    @property
    def plan(self) -> ParallelPlan:
        dp = self.num_devices // (TP * PP)
        model = ModelSpec(num_layers=LAYERS, num_heads=8, num_kv_heads=8)
        return plan_initial(Cluster.of(self.num_devices), model, TP, PP, dp, 8 * dp)

    @property
    def nodes(self) -> range:
        return range(self.num_devices // PER_NODE)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[UnitOfWork]:
        token = await self.store.lease(holder="bench", ttl_s=3600).acquire()
        assert token is not None
        async with self.store.transaction(token) as work:
            yield work

    async def begin(self) -> None:
        """Rows, in a database that has its tables."""
        now, plan = datetime.now(UTC), self.plan
        spec = JobSpec.model_validate({"name": JOB, "iterations": 100_000})
        async with self.writing() as work:
            await work.add_job(JOB, spec.model_dump(mode="json"))
            for n in self.nodes:
                row = NodeRecord(f"n{n}", f"a{n}", "host", "127.0.0.1", PER_NODE, "127.0.0.1:1", NodeState.UP, now, now)
                await work.put_node(row)
            await work.add_devices([_device(r, now) for r in range(self.num_devices)])
            await work.add_plan(PlanRecord(JOB, plan.epoch, plan.digest, plan.to_dict(), None, now, now))
            await work.set_job(JOB, JobState.RUNNING)
            await work.put_iterations([self._iteration(k) for k in range(1, PAST + 1)])
            await work.set_committed(JOB, PAST)

    def _iteration(self, k: int) -> IterationRecord:
        return IterationRecord(JOB, k, 1, 2.0, self.random.gauss(1.0, 0.01), 520 * self.num_devices, 64, 64)

    def _worker(self, rank: int) -> WorkerBeat:
        k = self.iteration
        return WorkerBeat(job=JOB, rank=rank, pid=rank, state="training", epoch=1, iteration=k, ops=1, silent_s=0.0)

    async def play(self, every_s: float) -> None:
        """Until cancelled: every node's beat, everybody's score and one iteration per tick."""
        due = time.monotonic()
        while True:
            await self.tick()
            due = max(due + every_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def tick(self) -> None:
        self.iteration += 1
        for n in self.nodes:
            workers = tuple(self._worker(r) for r in range(n * PER_NODE, (n + 1) * PER_NODE))
            beat = NodeBeat(
                node=f"n{n}", sequence=self.iteration, period_s=1.0, host="host", comm_host="127.0.0.1",
                num_slots=PER_NODE, store_address="127.0.0.1:1", workers=workers,
            )  # fmt: skip
            envelope = Envelope.of(beat, job=FLEET, source="agent", incarnation=f"a{n}")
            await self.bus.publish(envelope, detail=f"n{n}")
        ranks = tuple(range(self.num_devices))
        self.slow ^= set(self.random.sample(ranks, round(self.changing * len(ranks))))
        p = tuple(0.62 if rank in self.slow else 0.98 for rank in ranks)
        scores = HealthScores(iteration=self.iteration, ranks=ranks, p=p)
        await self.bus.publish(Envelope.of(scores, job=JOB, source="detector", incarnation="d"), detail="HealthScores")
        async with self.writing() as work:
            await work.put_iterations([self._iteration(self.iteration)])
            await work.set_committed(JOB, self.iteration)


def _device(rank: int, now: datetime) -> DeviceRecord:
    node, slot = divmod(rank, PER_NODE)
    return DeviceRecord(JOB, rank, f"n{node}", slot, f"a{node}", DeviceState.HEALTHY, rank, None, now)
