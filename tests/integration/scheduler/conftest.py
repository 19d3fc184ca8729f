"""Real nats-server and PostgreSQL (or SQLite); schedulers are processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resihp_bus import Bus, JetStreamBus, LocalNats
from resihp_store import Store
from resihp_store.revisions import upgrade
from support.nats import quick_settings
from support.scheduler_process import SchedulerProcess
from support.scheduler_rig import Rig

Spawn = Callable[..., SchedulerProcess]


@pytest.fixture(params=["sqlite", "postgresql"])
async def rig(request: pytest.FixtureRequest, nats_server: LocalNats, tmp_path: Path) -> AsyncIterator[Rig]:
    """Bus, migrated database, and no scheduler yet."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'resihp.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    await upgrade(url)

    async def new_bus() -> Bus:
        return JetStreamBus(quick_settings(nats_server.url), "test")

    bus, store = await new_bus(), Store(url)
    await bus.connect()
    made = Rig(new_bus, url, bus, store)
    await made.watch_events()
    yield made
    await bus.close()
    await store.close()


@pytest.fixture
def spawn(rig: Rig, nats_server: LocalNats, tmp_path: Path) -> Iterator[Spawn]:
    """Start a scheduler process; all of them end with the test."""
    started: list[SchedulerProcess] = []

    def start(name: str, **values: Any) -> SchedulerProcess:
        made = SchedulerProcess(tmp_path, bus_url=nats_server.url, database_url=rig.database_url, name=name, **values)
        made.start()
        started.append(made)
        return made

    yield start
    for process in started:
        process.end()
