"""The gateway as a process, on a real nats-server: lists over a long past, and many followers of the event stream.

    python -m benchmarks.gateway [--changes 10000] [--events 1000000] [--clients 200] [--rate 50] [--seconds 10]

Clients and publisher run in this process, so on a small machine they take processor time from the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.gateway.filled import JOB, RARE, fill
from benchmarks.report import machine, percentile, table, write
from resihp_bus import JetStreamBus, JetStreamSettings, LocalNats
from resihp_cli.process import SupervisedProcess
from resihp_cli.run_folder import RunFolder
from resihp_cli.topology import Addresses, listen, nats, services
from resihp_messages import Envelope
from resihp_messages.event import NodeLeft

REPEATS = 20
LISTS = (
    ("incidents, newest 50", f"/incidents?job={JOB}&sort=newest&limit=50"),
    ("incidents of a device", f"/incidents?job={JOB}&device=7&sort=newest&limit=50"),
    ("incidents of a kind", f"/incidents?job={JOB}&kind=device_slow&limit=50"),
    ("open incidents (none)", f"/incidents?job={JOB}&state=open"),
    ("changes, newest 50", f"/reconfigurations?job={JOB}&sort=newest&limit=50"),
    ("changes of a device", f"/reconfigurations?job={JOB}&device=7&limit=50"),
    ("rejected changes (none)", f"/reconfigurations?job={JOB}&status=rejected"),
    ("changes since a time", f"/reconfigurations?job={JOB}&since=2026-01-05T00:00:00Z&limit=50"),
    ("one change in full", "/reconfigurations/r0000050"),
    ("newest 50 events", f"/events?job={JOB}&limit=50"),
    ("events of a rare name", f"/events?name={RARE}&limit=50"),
    ("audit trail (empty)", "/audit"),
)


@dataclass(frozen=True)
class Running:
    """A gateway and the bus that it reads."""

    url: str
    bus_url: str
    process: psutil.Process


@asynccontextmanager
async def gateway(folder: RunFolder) -> AsyncIterator[Running]:
    """nats-server and gateway on the folder's database."""
    server: LocalNats
    server, bus_spec = nats(folder)
    listener = listen("127.0.0.1", 0)
    bus = SupervisedProcess(bus_spec)
    await bus.start(timeout_s=60)
    with_database, _ = services(folder, Addresses(server.url, folder.database_url), listener)
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


async def lists(running: Running) -> list[tuple[str, float, float, int]]:
    """(what, median ms, p95 ms, bytes) of each list."""
    rows = []
    async with httpx.AsyncClient(base_url=f"{running.url}/api/v1", timeout=60, trust_env=False) as client:
        for what, path in LISTS:
            taken, size = [], 0
            for _ in range(REPEATS):
                begun = time.perf_counter()
                response = await client.get(path)
                taken.append((time.perf_counter() - begun) * 1e3)
                response.raise_for_status()
                size = len(response.content)
            rows.append((what, percentile(taken, 50), percentile(taken, 95), size))
    return rows


@dataclass(frozen=True)
class Followed:
    """What the followers got, and what it cost the gateway."""

    published: int
    complete: int
    """Clients that got every event, in order, once."""
    cores: float
    delay_p95_s: float


async def follow(running: Running, clients: int, rate: float, seconds: float) -> Followed:
    """`clients` followers of /events while `rate` events per second are published."""
    total = round(rate * seconds)
    sent: dict[int, float] = {}
    delays: list[float] = []
    ready, standing = asyncio.Event(), [0]

    async def one(client: httpx.AsyncClient) -> bool:
        seen: list[int] = []
        async with client.stream("GET", "/events") as response:
            async for line in response.aiter_lines():
                if line == ": open":
                    standing[0] += 1
                    if standing[0] == clients:
                        ready.set()
                elif line.startswith("id: "):
                    seen.append(int(line[4:]))
                    if seen[-1] in sent:
                        delays.append(time.perf_counter() - sent[seen[-1]])
                    if len(seen) == total:
                        break
        return seen == list(range(seen[0], seen[0] + total))

    bus = JetStreamBus(JetStreamSettings(url=running.bus_url), "bench")
    await bus.connect()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=running.url, timeout=60, limits=limits, trust_env=False) as client:
        following = [asyncio.create_task(one(client)) for _ in range(clients)]
        await asyncio.wait_for(ready.wait(), 60)
        before, begun = running.process.cpu_times(), time.perf_counter()
        for k in range(total):
            body = Envelope.of(NodeLeft(node=f"n{k}"), job="_fleet", source="bench", incarnation="b")
            sent[k + 1] = time.perf_counter()
            await bus.publish(body, detail="NodeLeft")
            await asyncio.sleep(max(0.0, begun + (k + 1) / rate - time.perf_counter()))
        complete = sum(await asyncio.wait_for(asyncio.gather(*following), 120))
        after, wall = running.process.cpu_times(), time.perf_counter() - begun
    await bus.close()
    used = (after.user + after.system) - (before.user + before.system)
    return Followed(total, complete, used / wall, percentile(delays, 95))


async def main(changes: int, events: int, clients: int, rate: float, seconds: float) -> None:
    """Measure and write benchmarks/results/gateway.md."""
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="resihp-bench-") as name:
        folder = RunFolder(Path(name))
        folder.logs.mkdir(parents=True)
        await fill(folder.database_url, changes, events)
        async with gateway(folder) as running:
            start_mib = running.process.memory_info().rss / 2**20
            rows = await lists(running)
            lists_mib = running.process.memory_info().rss / 2**20
            followed = await follow(running, clients, rate, seconds)
            end_mib = running.process.memory_info().rss / 2**20
    shown = [(what, f"{median:.1f}", f"{p95:.1f}", size) for what, median, p95, size in rows]
    write(
        "gateway",
        "Gateway",
        f"python -m benchmarks.gateway --changes {changes} --events {events} --clients {clients} --rate {rate:g} "
        f"--seconds {seconds:g}",
        facts,
        f"SQLite with {changes:,} reconfigurations (and as many incidents) and {events:,} events; each list asked for "
        f"{REPEATS} times over HTTP, one after the other.\n\n"
        + table(("list", "median ms", "p95 ms", "bytes"), shown)
        + f"\n\n{clients} clients followed `/events` while {followed.published} events were published at {rate:g}/s: "
        f"{followed.complete} of them got every event, once and in order; 95 % of deliveries within "
        f"{followed.delay_p95_s * 1e3:.0f} ms of the publish call (clients share the machine); the gateway "
        f"used {followed.cores:.2f} cores.\n\n"
        f"Resident memory of the gateway: {start_mib:.0f} MiB after the start, {lists_mib:.0f} after the lists, "
        f"{end_mib:.0f} after the followers.",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description="Measure the gateway.")
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    os.environ.setdefault("RESIHP_LOG_LEVEL", "warning")
    asyncio.run(main(given.changes, given.events, given.clients, given.rate, given.seconds))
