"""The same world twice: buses that share a memory broker, and buses that share a real nats-server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from resihp_bus import Bus
from support.buses import JetStreamWorld, MemoryWorld, World


@pytest.fixture(params=["memory", "jetstream"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made: World = MemoryWorld() if request.param == "memory" else JetStreamWorld(tmp_path / "nats")
    yield made
    made.close()


@pytest_asyncio.fixture
async def bus(world: World) -> AsyncIterator[Bus]:
    """One connected bus."""
    made = world.bus()
    await made.connect()
    yield made
    await made.close()
