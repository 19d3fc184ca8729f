"""Which processes make up a local system, how each is started, and how each says that it is ready.

Every port is chosen by the kernel: services bind port 0 and announce themselves in a file of the run folder. The
gateway's listening socket belongs to the supervisor, so that its port survives a restart of the gateway and a port that
is in use is known before anything starts.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from resihp_bus import BusError, JetStreamBus, JetStreamSettings, KeyFolder, KeysError, LocalNats, ServerError
from resihp_cli.errors import CliError
from resihp_cli.process import ProcessSpec, last_words
from resihp_cli.run_folder import RunFolder


@dataclass(frozen=True)
class Addresses:
    """How services reach the shared parts."""

    bus_url: str
    database_url: str
    keys: Path | None = None
    """Folder of the bus's keys; each process takes the one of its name."""

    def bus(self, *, makes_streams: bool = False) -> dict[str, str]:
        """Environment of a process that uses the bus."""
        environment = {"RESIHP_BUS_URL": self.bus_url}
        if self.keys is not None:
            environment |= {"RESIHP_BUS_KEYS": str(self.keys), "RESIHP_BUS_PROVISION": str(makes_streams).lower()}
        return environment


def listen(host: str, port: int) -> socket.socket:
    """A listening socket for the gateway. Raises `CliError` if the port is in use or forbidden."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise CliError(f"port {port} is in use: choose another --port, or 0 for any free one") from error
        raise CliError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def nats(folder: RunFolder, keys: KeyFolder | None = None) -> tuple[LocalNats, ProcessSpec]:
    """An own nats-server with its store in the run folder; it keeps its port over restarts."""
    server = LocalNats(folder.path / "nats", include=keys.config if keys is not None else None)

    def command() -> Sequence[str]:
        try:
            return server.prepare()
        except ServerError as error:
            raise CliError(str(error)) from error

    async def ready(pid: int) -> bool:
        return await asyncio.to_thread(server.greets, pid)

    return server, ProcessSpec("nats", command, folder.logs / "nats.log", ready)


def node_name(index: int) -> str:
    """Of the local agent with this number."""
    return f"n{index}"


def make_keys(folder: RunFolder, num_agents: int) -> KeyFolder:
    """Keys for everybody of this run, in its folder. Raises `CliError`."""
    keys = KeyFolder(folder.path / "keys")
    try:
        keys.init([node_name(index) for index in range(num_agents)])
    except KeysError as error:
        raise CliError(str(error)) from error
    return keys


async def make_streams(addresses: Addresses) -> None:
    """As the scheduler, which alone may: then nobody waits for its start. Raises `CliError`."""
    await _try_bus(JetStreamSettings(url=addresses.bus_url, keys=addresses.keys, provision=True), "scheduler")


async def check_bus(url: str) -> Path | None:
    """Returns the folder of keys that the environment names for it, if any. Raises `CliError` if it cannot be used."""
    from pydantic import ValidationError

    try:
        settings = JetStreamSettings(url=url, connect_timeout_s=5.0)
    except ValidationError as error:
        raise CliError(f"--bus: {error.errors(include_url=False)[0]['msg'].removeprefix('Value error, ')}") from error
    if settings.keys is None:
        await _try_bus(settings, "resihp-cli")
    else:
        await _try_bus(settings.model_copy(update={"provision": True}), "scheduler")
    return settings.keys


async def _try_bus(settings: JetStreamSettings, name: str) -> None:
    bus = JetStreamBus(settings, name)
    try:
        await bus.connect()
    except BusError as error:
        raise CliError(f"bus: {error}") from error
    finally:
        await bus.close()


async def migrate(database_url: str, folder: RunFolder) -> None:
    """Bring the database to the newest revision, once. Raises `CliError`."""
    log = folder.logs / "migrate.log"
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "resihp_store.migrate", "--url", database_url),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        code = await process.wait()
    if code:
        raise CliError(f"database{last_words(log)}")


def service(name: str, module: str, folder: RunFolder, environment: Mapping[str, str], *fds: int) -> ProcessSpec:
    """A process of the chassis: `python -m <module>`, ready when the health endpoint that it announces says so."""
    announce = folder.path / "announce" / f"{name}.json"
    command = (sys.executable, "-m", module)
    return ProcessSpec(
        name,
        lambda: command,
        folder.logs / f"{name}.log",
        Announced(announce).ready,
        {"RESIHP_ANNOUNCE_FILE": str(announce), **environment},
        pass_fds=fds,
    )


def services(
    folder: RunFolder, addresses: Addresses, listener: socket.socket
) -> tuple[list[ProcessSpec], list[ProcessSpec]]:
    """The services that need the database (scheduler, gateway), and those that do not (detector)."""
    bus = addresses.bus()
    database = {"RESIHP_DATABASE_URL": addresses.database_url}
    inherited = listener.fileno()
    gateway = {**bus, **database, "RESIHP_GATEWAY_LISTEN_FD": str(inherited)}
    with_database = [
        service("scheduler", "resihp_scheduler", folder, {**addresses.bus(makes_streams=True), **database}),
        service("gateway", "resihp_gateway", folder, gateway, inherited),
    ]
    return with_database, [service("detector", "resihp_detector", folder, bus)]


def agents(
    folder: RunFolder, slots: Sequence[int], addresses: Addresses, *, launches: bool = True
) -> list[ProcessSpec]:
    """One agent per entry of `slots`, named n0, n1, ... Without `launches` they only watch jobs that others launch."""
    zygote = {} if launches else {"RESIHP_AGENT_ZYGOTE_COMMAND": "[]"}
    return [
        service(
            f"agent-{node_name(index)}",
            "resihp_agent",
            folder,
            {
                **addresses.bus(),
                "RESIHP_AGENT_NODE": node_name(index),
                "RESIHP_AGENT_NUM_SLOTS": str(num_slots),
                "RESIHP_AGENT_WORK_DIR": str(folder.path / "agents" / node_name(index)),
                **zygote,
            },
        )
        for index, num_slots in enumerate(slots)
    ]


class Announced:
    """A service's announcement: which process it is, and where its health endpoint listens."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ready(self, pid: int) -> bool:
        """Whether the process with this id has announced itself and /readyz says yes."""
        url = self.health_url(pid)
        if url is None:
            return False
        try:
            async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
                return (await client.get(f"{url}/readyz")).status_code == 200
        except (httpx.HTTPError, httpx.InvalidURL):
            return False

    def health_url(self, pid: int) -> str | None:
        """None until this very process (not its predecessor) has written it down."""
        try:
            facts = json.loads(self._path.read_text())
            return str(facts["health_url"]) if facts["pid"] == pid else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
