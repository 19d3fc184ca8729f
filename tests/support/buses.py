"""Buses that can reach each other, in memory or through a real nats-server: what the bus contract runs on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import nats

from resihp_bus import Bus, BusStats, JetStreamBus, LocalNats, MemoryBroker, MemoryBus
from support.nats import quick_settings, require_nats


class World(ABC):
    """Makes buses that can reach each other, and takes their server away."""

    max_tries = 3

    @abstractmethod
    def bus(self, name: str = "test") -> Bus:
        """A new bus, not connected."""

    @abstractmethod
    def stats(self, bus: Bus) -> BusStats: ...

    @abstractmethod
    async def inject(self, subject: str, raw: bytes) -> None:
        """Bytes of a foreign program, on a subject that a stream captures; they are stored when this returns."""

    @abstractmethod
    def down(self) -> None:
        """The server crashes."""

    @abstractmethod
    def up(self) -> None:
        """It is back, with what it had stored."""

    @abstractmethod
    def close(self) -> None: ...


class MemoryWorld(World):
    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def bus(self, name: str = "test") -> Bus:
        return MemoryBus(self.broker, name, max_tries=self.max_tries)

    def stats(self, bus: Bus) -> BusStats:
        assert isinstance(bus, MemoryBus)
        return bus.stats

    async def inject(self, subject: str, raw: bytes) -> None:
        self.broker.inject(subject, raw)

    def down(self) -> None:
        self.broker.available = False

    def up(self) -> None:
        self.broker.available = True

    def close(self) -> None:
        pass


class JetStreamWorld(World):
    def __init__(self, directory: Path) -> None:
        require_nats()
        self.server = LocalNats(directory)
        self.server.start()

    def bus(self, name: str = "test") -> Bus:
        return JetStreamBus(quick_settings(self.server.url, max_tries=self.max_tries), name)

    def stats(self, bus: Bus) -> BusStats:
        assert isinstance(bus, JetStreamBus)
        return bus.stats

    async def inject(self, subject: str, raw: bytes) -> None:
        client = await nats.connect(self.server.url)
        await client.jetstream().publish(subject, raw)  # "received" (flush) would not yet be "stored"
        await client.close()

    def down(self) -> None:
        self.server.kill()

    def up(self) -> None:
        self.server.restart()

    def close(self) -> None:
        self.server.stop()
