"""The database goes away and comes back: nothing is decided meanwhile, nothing is lost afterwards."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from resihp_bus import MemoryBroker, MemoryBus
from resihp_store import Store
from resihp_store.revisions import upgrade
from support.postgres import PostgresServer, own_server
from support.scheduler_rig import Rig
from support.scripted_agent import declare
from support.waiting import wait_for


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server of this test alone (`postgres_server` only proves that there can be one)."""
    folder = Path(tempfile.mkdtemp(prefix="pg_", dir="/tmp"))
    made = own_server(folder)
    made.start()
    yield made
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def rig(server: PostgresServer) -> AsyncIterator[Rig]:
    url, broker = server.create_database(), MemoryBroker()
    await upgrade(url)

    async def new_bus() -> MemoryBus:
        return MemoryBus(broker)

    bus, store = MemoryBus(broker), Store(url)
    await bus.connect()
    made = Rig(new_bus, url, bus, store)
    await made.watch_events()
    yield made
    await bus.close()
    await store.close()


async def test_verdict_during_an_outage(rig: Rig, server: PostgresServer) -> None:
    async with rig.scheduler() as service:
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        await asyncio.to_thread(server.stop)
        await declare(rig.bus, [3], node="a")
        await wait_for(lambda: not service.health.ready().ok, 20, what="not ready without a database")
        assert "database" in {k for k, v in service.health.ready().parts.items() if v != "ok"}
        assert len(a.plans) == 1
        await asyncio.to_thread(server.start)
        await rig.applied(2)
        await wait_for(lambda: service.health.ready().ok, 20, what="ready again")
        assert [len(agent.plans) for agent in (a, b)] == [2, 2]
        assert len(await rig.incidents()) == 1
