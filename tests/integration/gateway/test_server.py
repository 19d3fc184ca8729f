"""The gateway as a process: real nats-server, real sockets, SIGKILL and resume."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from resihp_bus import JetStreamBus, LocalNats
from resihp_cli.client import GatewayClient
from resihp_cli.errors import CliError
from resihp_cli.process import SupervisedProcess
from resihp_cli.run_folder import RunFolder
from resihp_cli.topology import Addresses, listen, services
from resihp_gateway.models import EventView
from resihp_store.revisions import upgrade
from support.envelopes import event
from support.gateway import seed
from support.waiting import wait_for


@pytest.fixture
async def gateway(tmp_path: Path, nats_server: LocalNats) -> AsyncIterator[tuple[SupervisedProcess, str]]:
    """A supervised gateway on a seeded database, and its address."""
    folder = RunFolder(tmp_path / "run")
    folder.logs.mkdir(parents=True)
    await upgrade(folder.database_url)
    await seed(folder.database_url)
    listener = listen("127.0.0.1", 0)
    with_database, _ = services(folder, Addresses(nats_server.url, folder.database_url), listener)
    process = SupervisedProcess(next(spec for spec in with_database if spec.name == "gateway"))
    await process.start(timeout_s=120)
    yield process, f"http://127.0.0.1:{listener.getsockname()[1]}"
    await process.stop()
    listener.close()


async def publish(bus: JetStreamBus, *nodes: str) -> None:
    for node in nodes:
        await bus.publish(event(node), detail="NodeLeft")


async def test_a_killed_gateway_costs_no_event(gateway: tuple[SupervisedProcess, str], nats_bus: JetStreamBus) -> None:
    """The client resumes by sequence on the same address; what happened while the gateway was away arrives too."""
    process, url = gateway
    seen: list[EventView] = []

    async def follow(client: GatewayClient) -> None:
        async for found in client.events(after=0):
            seen.append(found)

    async with GatewayClient(url) as client:
        following = asyncio.create_task(follow(client))
        await publish(nats_bus, "a", "b")
        await wait_for(lambda: len(seen) == 2, 20)
        pid = process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await publish(nats_bus, "c")
        await wait_for(lambda: len(seen) == 3, 60)
        await publish(nats_bus, "d")
        await wait_for(lambda: len(seen) == 4, 20)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        assert (await client.job("demo")).committed == 20
    assert [e.body["node"] for e in seen] == ["a", "b", "c", "d"]
    assert [e.sequence for e in seen] == [1, 2, 3, 4]


async def test_nats_away_is_503_and_heals(gateway: tuple[SupervisedProcess, str], nats_server: LocalNats) -> None:
    _, url = gateway
    async with GatewayClient(url) as client:
        await wait_for(client.ready, 30)
        nats_server.kill()

        async def not_ready() -> bool:
            return not await client.ready()

        await wait_for(not_ready, 30)
        assert (await client.job("demo")).state == "finished"  # reads need no bus
        with pytest.raises(CliError, match="503"):
            await client.inflict("demo", 1, "kill")
        nats_server.restart()
        await wait_for(client.ready, 30)


async def test_stops_quickly_with_an_open_stream(gateway: tuple[SupervisedProcess, str]) -> None:
    process, url = gateway
    async with GatewayClient(url) as client:
        stream = client.events(after=0, reconnect=False)
        first = asyncio.create_task(anext(stream))
        await wait_for(client.ready, 20)
        await asyncio.wait_for(process.stop(), 120)
        with pytest.raises((CliError, StopAsyncIteration)):
            await asyncio.wait_for(first, 120)


@pytest.mark.parametrize("problem", ["port", "bus", "database", "schema", "setting"])
def test_what_keeps_it_from_starting_is_one_line_and_exit_code_2(
    problem: str, tmp_path: Path, nats_server: LocalNats
) -> None:
    database = f"sqlite+aiosqlite:///{tmp_path / 'x.db'}"
    with socket.socket() as taken, socket.socket() as closed:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        closed.bind(("127.0.0.1", 0))
        environment = {
            "RESIHP_DATABASE_URL": "oracle://x" if problem == "database" else database,
            "RESIHP_BUS_URL": f"nats://127.0.0.1:{closed.getsockname()[1]}" if problem == "bus" else nats_server.url,
            "RESIHP_BUS_CONNECT_TIMEOUT_S": "0.5",
            "RESIHP_GATEWAY_PORT": str(taken.getsockname()[1]) if problem == "port" else "0",
            "RESIHP_GATEWAY_HEARTBEAT_S": "never" if problem == "setting" else "1",
        }
        if problem in ("bus", "port"):
            asyncio.run(upgrade(database))
        done = subprocess.run(
            [sys.executable, "-m", "resihp_gateway"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    words = {
        "port": "is in use: set RESIHP_GATEWAY_PORT",
        "bus": "nats://127.0.0.1",
        "database": "unsupported database URL",
        "schema": "run: python -m resihp_store.migrate",
        "setting": "RESIHP_GATEWAY_HEARTBEAT_S",
    }
    told = [line for line in done.stderr.splitlines() if line.startswith("resihp gateway: ")]
    assert len(told) == 1, done.stderr
    assert words[problem] in told[0], last
