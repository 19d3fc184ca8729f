"""The scene of the detector's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from resihp_bus import MemoryBroker, MemoryBus
from resihp_chassis import ManualClock
from support.detection import Surroundings
from support.detector_scene import Scene


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    broker = MemoryBroker()
    bus = MemoryBus(broker, "world")
    await bus.connect()
    world = Surroundings(bus)
    await world.start()
    yield Scene(broker, ManualClock(1000.0), world)
    await bus.close()
