"""Runs everything on this machine: nats-server, migration, detector, scheduler, gateway, agents, as real processes.

Order of start: the bus; then detector and agents, and beside them the schema and what needs it. Order of stop: agents
(they end their workers), then the services, and the bus last. A crashed process is restarted with back-off; nothing
outlives the supervisor, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from resihp_cli.errors import CliError
from resihp_cli.fault_script import NodeStep
from resihp_cli.process import ProcessSpec, SupervisedProcess
from resihp_cli.run_folder import RunFolder, RunInfo, publish_latest
from resihp_cli.topology import (
    Addresses,
    agents,
    check_bus,
    listen,
    make_keys,
    make_streams,
    migrate,
    nats,
    services,
)

READY_TIMEOUT_S = 60.0
"""Generous: a loaded machine starts Python slowly. A process that fails ends the wait at once."""


@dataclass(frozen=True)
class SupervisorOptions:
    """What to run."""

    num_devices: int = 8
    """Slots over all agents; dealt evenly, the first agents get one more."""
    num_agents: int = 1
    gateway_port: int = 0
    """0: any free port."""
    gateway_host: str = "127.0.0.1"
    bus_url: str | None = None
    """None: start an own nats-server."""
    keys: bool = False
    """Give every process a key of its own on the own nats-server, and permissions for its part only."""
    database_url: str | None = None
    """None: a SQLite file in the run folder."""
    launches: bool = True
    """Whether the agents launch workers, or only watch jobs that others launch."""

    def __post_init__(self) -> None:
        if self.keys and self.bus_url is not None:
            raise CliError("--keys is for the bus that is started here; for another one set RESIHP_BUS_KEYS")


def deal_slots(num_devices: int, num_agents: int) -> tuple[int, ...]:
    """Slots per agent, as even as possible.

    >>> deal_slots(8, 3)
    (3, 3, 2)
    """
    if num_agents > num_devices:
        raise CliError(f"--agents {num_agents} exceeds the number of devices ({num_devices})")
    base, extra = divmod(num_devices, num_agents) if num_agents else (0, 0)
    return tuple(base + (i < extra) for i in range(num_agents))


class Supervisor:
    """Everything of one run. Use as an async context manager: leaving it stops all processes in order."""

    def __init__(
        self, options: SupervisorOptions, folder: RunFolder, *, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self.options = options
        self.folder = folder
        self._note = note
        self._processes: list[SupervisedProcess] = []
        self._listener: socket.socket | None = None
        self._info: RunInfo | None = None

    @property
    def info(self) -> RunInfo:
        """Addresses and process ids; valid once started."""
        assert self._info is not None, "not started"
        pids = {p.spec.name: p.pid for p in self._processes if p.pid is not None}
        return replace(self._info, pids=pids)

    async def __aenter__(self) -> Supervisor:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        options, folder = self.options, self.folder
        slots = deal_slots(options.num_devices, options.num_agents)
        self._listener = listen(options.gateway_host, options.gateway_port)
        addresses = await self._addresses()
        with_database, without_database = services(folder, addresses, self._listener)
        async with _first_failure(), asyncio.TaskGroup() as group:
            nodes = agents(folder, slots, addresses, launches=options.launches)
            group.create_task(self._launch(*without_database, *nodes))
            group.create_task(self._migrate_and_launch(addresses.database_url, with_database))
        self._info = RunInfo(
            id=folder.id,
            gateway_url="http://{}:{}".format(*self._listener.getsockname()[:2]),
            bus_url=addresses.bus_url,
            database_url=addresses.database_url,
            supervisor_pid=os.getpid(),
        )
        self.publish()

    async def _addresses(self) -> Addresses:
        """Of a bus that runs: an own one, unless the options name another."""
        options, database = self.options, self.options.database_url or self.folder.database_url
        if options.bus_url is not None:
            return Addresses(options.bus_url, database, await check_bus(options.bus_url))
        keys = make_keys(self.folder, options.num_agents) if options.keys else None
        server, spec = nats(self.folder, keys)
        await self._launch(spec)
        addresses = Addresses(server.url, database, keys.path if keys is not None else None)
        if keys is not None:
            await make_streams(addresses)
        return addresses

    async def _launch(self, *specs: ProcessSpec) -> None:
        """Start together; the first failure ends the wait for the others."""
        started = [SupervisedProcess(spec) for spec in specs]
        self._processes += started
        self._note("starting " + ", ".join(spec.name for spec in specs))
        async with _first_failure(), asyncio.TaskGroup() as group:
            for process in started:
                group.create_task(process.start(timeout_s=READY_TIMEOUT_S))

    async def _migrate_and_launch(self, database_url: str, specs: list[ProcessSpec]) -> None:
        await migrate(database_url, self.folder)
        await self._launch(*specs)

    def publish(self) -> None:
        """Write `run.json` and make this run the newest."""
        self.folder.write(self.info)
        publish_latest(self.folder)

    def set_job(self, job: str) -> None:
        """Name the run's job in `run.json`."""
        assert self._info is not None
        self._info = replace(self._info, job=job)
        self.publish()

    async def act_on_node(self, step: NodeStep) -> None:
        """Kill the agent `n<step.agent>` and all its children at once, and keep it down; or start it again."""
        agent = next(p for p in self._processes if p.spec.name == f"agent-n{step.agent}")
        if step.kind == "kill":
            agent.strike_down()
        else:
            agent.release()

    async def stop(self) -> None:
        """Stop everything, last started first, the agents before the services. Idempotent."""
        processes, self._processes = self._processes, []
        for group in _stop_groups(processes):
            await asyncio.gather(*(p.stop() for p in group))
        if self._listener is not None:
            self._listener.close()

    async def run_until_cancelled(self) -> None:
        """Keep `run.json` true while processes are restarted."""
        written = self.info
        while True:
            await asyncio.sleep(0.5)
            if self.info != written:
                written = self.info
                self.folder.write(written)


@asynccontextmanager
async def _first_failure() -> AsyncIterator[None]:
    """Of several tasks that were started together: the first `CliError` instead of a group."""
    try:
        yield
    except* CliError as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


def _stop_groups(processes: list[SupervisedProcess]) -> list[list[SupervisedProcess]]:
    """Agents first, the bus last."""
    agents = [p for p in processes if p.spec.name.startswith("agent-")]
    bus = [p for p in processes if p.spec.name == "nats"]
    services = [p for p in processes if p not in agents and p not in bus]
    return [group for group in (agents, services, bus) if group]
