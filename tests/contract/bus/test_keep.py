"""What a process keeps between two of its starts."""

from __future__ import annotations

import pytest

from resihp_bus import BusUnavailable
from support.buses import World


async def test_the_newest_version_is_found_by_another_process(world: World) -> None:
    first, second = world.bus("one"), world.bus("two")
    await first.connect()
    await second.connect()
    assert await first.kept("state") is None
    await first.keep("state", b"old")
    await first.keep("other", b"")
    large = bytes(range(256)) * 12_000  # beyond what one message can carry
    await first.keep("state", large)
    assert await second.kept("state") == large
    assert await second.kept("other") == b""
    await first.close()
    await second.close()


async def test_it_survives_the_server_and_says_when_it_cannot_be_reached(world: World) -> None:
    bus = world.bus()
    await bus.connect()
    await bus.keep("state", b"before")
    world.down()
    with pytest.raises(BusUnavailable):
        await bus.keep("state", b"lost", timeout_s=0.3)
    world.up()
    again = world.bus("again")
    await again.connect()
    assert await again.kept("state") == b"before"
    await again.close()
    await bus.close()
