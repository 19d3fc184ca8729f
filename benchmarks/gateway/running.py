"""A gateway as a process, on a real nats-server and a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil

from resihp_bus import LocalNats
from resihp_cli.process import SupervisedProcess
from resihp_cli.run_folder import RunFolder
from resihp_cli.topology import Addresses, listen, nats, services


@dataclass(frozen=True)
class Running:
    """A gateway and the bus that it reads."""

    url: str
    bus_url: str
    process: psutil.Process

    @property
    def resident_mib(self) -> float:
        return float(self.process.memory_info().rss / 2**20)

    @property
    def processor_s(self) -> float:
        """User and system time so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@asynccontextmanager
async def gateway(folder: RunFolder, database_url: str) -> AsyncIterator[Running]:
    """nats-server and gateway; logs go to the folder."""
    server: LocalNats
    server, bus_spec = nats(folder)
    listener = listen("127.0.0.1", 0)
    bus = SupervisedProcess(bus_spec)
    await bus.start(timeout_s=60)
    with_database, _ = services(folder, Addresses(server.url, database_url), listener)
    process = SupervisedProcess(next(spec for spec in with_database if spec.name == "gateway"))
    try:
        await process.start(timeout_s=60)
        assert process.pid is not None
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Running(url, server.url, psutil.Process(process.pid))
    finally:
        await process.stop()
        await bus.stop()
        listener.close()
