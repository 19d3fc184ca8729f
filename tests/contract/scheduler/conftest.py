"""Every test of this folder runs in memory with SQLite, and on a real nats-server with PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from resihp_bus import Bus, JetStreamBus, MemoryBroker, MemoryBus
from resihp_store import Store
from resihp_store.revisions import upgrade
from support.nats import quick_settings
from support.scheduler_rig import Rig


@pytest.fixture(params=["memory-sqlite", "nats-postgresql"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    """Bus, migrated database, and no scheduler yet."""
    if request.param == "memory-sqlite":
        url, broker = f"sqlite+aiosqlite:///{tmp_path / 'resihp.db'}", MemoryBroker()

        async def new_bus() -> Bus:
            return MemoryBus(broker)
    else:
        url, server = request.getfixturevalue("postgres_url"), request.getfixturevalue("nats_server")

        async def new_bus() -> Bus:
            return JetStreamBus(quick_settings(server.url), "test")

    await upgrade(url)
    bus, store = await new_bus(), Store(url)
    await bus.connect()
    made = Rig(new_bus, url, bus, store)
    await made.watch_events()
    yield made
    await bus.close()
    await store.close()
