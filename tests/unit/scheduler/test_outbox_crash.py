"""Between commit and publish: what was decided is said exactly once, whoever is left to say it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from resihp_bus import BusUnavailable, MemoryBroker, MemoryBus
from resihp_messages import AnyEnvelope, Kind
from resihp_store import Store
from resihp_store.revisions import upgrade
from support.scheduler_rig import Rig
from support.scripted_agent import declare
from support.waiting import wait_for


class MuteBus(MemoryBus):
    """Hears everything, can say nothing: a scheduler whose publishes get lost."""

    mute = False

    async def publish(self, envelope: AnyEnvelope, *, detail: str, timeout_s: float = 2.0) -> None:
        if self.mute:
            raise BusUnavailable("mute")
        await super().publish(envelope, detail=detail, timeout_s=timeout_s)


async def test_successor_says_what_was_decided(tmp_path: Path) -> None:
    url, broker = f"sqlite+aiosqlite:///{tmp_path / 'resihp.db'}", MemoryBroker()
    await upgrade(url)
    made: list[MuteBus] = []

    async def new_bus() -> MuteBus:
        made.append(MuteBus(broker))
        return made[-1]

    bus, store = MemoryBus(broker), Store(url)
    await bus.connect()
    rig = Rig(new_bus, url, bus, store)
    await rig.watch_events()
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        made[-1].mute = True
        await declare(bus, [3], node="a")
        unsent = await wait_for(lambda: _unsent(store), 10)
        assert len(a.plans) == 1
        assert len(await rig.changes()) == 2  # decided, not said
    assert unsent == await _unsent(store)
    async with rig.scheduler():
        await rig.applied(2)
    assert [len(agent.plans) for agent in (a, b)] == [2, 2]
    said = [e.message_id for kind in (Kind.COMMAND, Kind.EVENT) for e in broker.stored(kind)]
    assert len(said) == len(set(said))
    assert set(unsent) <= set(said)
    await bus.close()
    await store.close()


async def _unsent(store: Store) -> list[str]:
    return [m.message_id for m in await store.unsent(10)]


async def test_bus_that_comes_back(tmp_path: Path) -> None:
    """The same scheduler goes on by itself when it can speak again."""
    url, broker = f"sqlite+aiosqlite:///{tmp_path / 'resihp.db'}", MemoryBroker()
    await upgrade(url)
    made: list[MuteBus] = []

    async def new_bus() -> MuteBus:
        made.append(MuteBus(broker))
        return made[-1]

    bus, store = MemoryBus(broker), Store(url)
    await bus.connect()
    rig = Rig(new_bus, url, bus, store)
    await rig.watch_events()
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running()
        made[-1].mute = True
        await declare(bus, [3], node="a")
        await wait_for(lambda: _unsent(store), 10)
        await asyncio.sleep(0)
        made[-1].mute = False
        await rig.applied(2)
    await bus.close()
    await store.close()
