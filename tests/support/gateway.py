"""A gateway on a SQLite file and a memory bus, with a small seeded history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from resihp_bus import MemoryBroker, MemoryBus
from resihp_chassis import Service, SystemClock
from resihp_gateway.bootstrap import bootstrap
from resihp_gateway.context import Gateway
from resihp_gateway.settings import GatewaySettings
from resihp_messages import AnyEnvelope, Envelope, Kind
from resihp_messages.request import Reply
from resihp_plan.plan import ParallelPlan, ReplicaPlan, StagePlan
from resihp_store import DeviceState, IterationRecord, JobState, ReconfigurationStatus, Store
from resihp_store.revisions import upgrade
from support.store import NOON, device, incident, node, plan_row, reconfiguration, spec

HEALTHY = ParallelPlan(
    1,
    (
        ReplicaPlan((StagePlan(0, 4, (0, 1), (1, 1)), StagePlan(4, 8, (2, 3), (1, 1))), 4),
        ReplicaPlan((StagePlan(0, 4, (4, 5), (1, 1)), StagePlan(4, 8, (6, 7), (1, 1))), 4),
    ),
)
AFTER_LOSS = ParallelPlan(
    2,
    (
        ReplicaPlan((StagePlan(0, 4, (0, 1), (1, 1)), StagePlan(4, 8, (2,), (1,))), 3),
        ReplicaPlan((StagePlan(0, 4, (4, 5), (1, 1)), StagePlan(4, 8, (6, 7), (1, 1))), 5),
    ),
)
PHASES = {"detect": 0.004, "plan": 0.012, "abort": 0.03, "rebuild": 0.1, "move": 0.05, "redo": 0.4, "total": 0.6}


@dataclass(frozen=True)
class TestGateway:
    """The app with its two sides: what it reads, and the bus on which a test plays the others."""

    __test__ = False

    app: FastAPI
    gateway: Gateway
    broker: MemoryBroker
    bus: MemoryBus
    database_url: str

    def broker_events(self) -> tuple[AnyEnvelope, ...]:
        """Everything in the event stream."""
        return self.broker.stored(Kind.EVENT)


@asynccontextmanager
async def open_gateway(folder: Path, *, seeded: bool = True, **settings: object) -> AsyncIterator[TestGateway]:
    """A connected gateway; `bus` belongs to the test, on the same broker."""
    url = await _database(folder / "resihp.db", seeded=seeded)
    broker = MemoryBroker()
    own, other = MemoryBus(broker, "gateway"), MemoryBus(broker, "test")
    values = {"database_url": url, "request_timeout_s": 0.5, "heartbeat_s": 0.2, **settings}
    service = Service("gateway", GatewaySettings.model_validate(values), SystemClock())
    process = bootstrap(service, bus=own, store=Store(url))
    await own.connect()
    await other.connect()
    try:
        yield TestGateway(process.app, process.gateway, broker, other, url)
    finally:
        process.gateway.closing.set()
        await own.close()
        await other.close()
        await process.gateway.store.close()


_PREPARED: dict[bool, bytes] = {}
"""Migrated (and seeded) once per session; every test gets a copy."""


async def _database(file: Path, *, seeded: bool) -> str:
    url = f"sqlite+aiosqlite:///{file}"
    if seeded in _PREPARED:
        file.write_bytes(_PREPARED[seeded])
        return url
    await upgrade(url)
    if seeded:
        await seed(url)
    _PREPARED[seeded] = file.read_bytes()  # all connections are closed: nothing is left in a write-ahead log
    return url


async def play_scheduler(gateway: TestGateway, verb: str, answer: Reply) -> list[AnyEnvelope]:
    """Plays the leader: answers one verb and keeps what it was asked."""
    asked: list[AnyEnvelope] = []

    async def respond(envelope: AnyEnvelope) -> AnyEnvelope:
        asked.append(envelope)
        return Envelope.of(answer, job=envelope.job, source="scheduler", incarnation="s1")

    await gateway.bus.serve(verb, respond)
    return asked


async def seed(url: str) -> None:
    """Job `demo`, 8 devices; rank 3 was lost in iteration 15 and the plan of epoch 2 took over."""
    store = Store(url)
    token = await store.lease(holder="seed", ttl_s=60).acquire()
    assert token is not None
    try:
        async with store.transaction(token) as work:
            await work.add_job("demo", spec(name="demo", iterations=20))
            await work.put_node(node("n0", num_slots=8))
            await work.add_devices([device("demo", rank) for rank in range(8)])
            await work.set_devices("demo", [3], DeviceState.LOST)
            for plan, installed in ((HEALTHY, NOON), (AFTER_LOSS, NOON)):
                row = plan_row("demo", plan.epoch, digest=plan.digest, plan=plan.to_dict(), installed_at=installed)
                await work.add_plan(row)
            await work.add_incident(incident("demo", closed_at=NOON))
            await work.add_reconfiguration(
                reconfiguration(
                    "demo",
                    incident_id="i1",
                    status=ReconfigurationStatus.APPLIED,
                    phases_s=PHASES,
                    proof={"samples_once": True, "digests_equal": True},
                    bytes_moved=123_456,
                    old_digest=HEALTHY.digest,
                    new_digest=AFTER_LOSS.digest,
                    achieved_tokens_per_s=760.0,
                    applied_at=NOON,
                )
            )
            await work.put_iterations([iteration(k) for k in range(1, 21)])
            await work.set_committed("demo", 20)
            await work.set_job("demo", JobState.FINISHED, samples_expected=200, samples_once=200, final_loss=2.5)
    finally:
        await store.close()


def iteration(k: int) -> IterationRecord:
    return IterationRecord("demo", k, 1 if k < 15 else 2, 5.0 - k / 10, 0.1 if k < 15 else 0.2, 1000, 10, 10, 1 << 28)
