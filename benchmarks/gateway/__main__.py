"""The gateway as a process, on a real nats-server: lists over a long past, and many followers of the event stream.

    python -m benchmarks.gateway [--postgres URL] [--sqlite FILE] [--changes 10000] [--events 1000000] [--clients 200]
                                 [--rate 50] [--seconds 20] [--only fill|lists|follow]

`--postgres`: an empty database (or one that an earlier run has filled); its lists are measured beside those of SQLite,
whose file is a temporary one unless `--sqlite` names it. Followers run in a process of their own,
on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from benchmarks.gateway.filled import fill
from benchmarks.gateway.follow import Followed, follow
from benchmarks.gateway.lists import REPEATS, Timing, lists
from benchmarks.gateway.running import gateway
from benchmarks.report import machine, table, write
from resihp_cli.run_folder import RunFolder

Listed = tuple[list[Timing], float, float]
"""Timings, and resident MiB of the gateway before and after."""


async def measure_lists(url: str, changes: int, events: int) -> Listed:
    """On a database that is filled first."""
    await fill(url, changes, events)
    with tempfile.TemporaryDirectory(prefix="resihp-bench-") as name:
        folder = RunFolder(Path(name))
        folder.logs.mkdir(parents=True)
        async with gateway(folder, url) as running:
            before = running.resident_mib
            return await lists(running), before, running.resident_mib


async def measure_followers(clients: int, rate: float, seconds: float) -> tuple[Followed, float]:
    """With the resident MiB of the gateway afterwards."""
    with tempfile.TemporaryDirectory(prefix="resihp-bench-") as name:
        folder = RunFolder(Path(name))
        folder.logs.mkdir(parents=True)
        await fill(folder.database_url, 0, 0)
        async with gateway(folder, folder.database_url) as running:
            return await follow(running, clients, rate, seconds), running.resident_mib


def listed_text(name: str, found: Listed, changes: int, events: int) -> str:
    rows, before, after = found
    worst = max(row.p95_ms for row in rows)
    shown = [(r.what, f"{r.median_ms:.1f}", f"{r.p95_ms:.1f}", f"{r.processor_ms:.1f}", r.num_bytes) for r in rows]
    return (
        f"## Lists on {name}\n\n{changes:,} reconfigurations (as many incidents, decisions) and {events:,} events; "
        f"each list asked for {REPEATS} times over HTTP, one after the other. Largest p95: {worst:.1f} ms. "
        f"Resident memory of the gateway: {before:.0f} MiB before, {after:.0f} after.\n\n"
        + table(("list", "median ms", "p95 ms", "processor ms", "bytes"), shown)
    )


def followed_text(found: Followed, resident_mib: float) -> str:
    return (
        f"## Followers\n\n{found.clients} clients followed `/events` (plain sockets in one other process, on the same "
        f"cores) while {found.published} events were published at {found.rate:.1f}/s: {found.complete} of them got "
        f"every event, once and in order ({found.deliveries:,} deliveries). From publish call to client: median "
        f"{found.median_s * 1e3:.0f} ms, p95 {found.p95_s * 1e3:.0f} ms, longest {found.longest_s * 1e3:.0f} ms. The "
        f"gateway used {found.cores:.2f} cores and {resident_mib:.0f} MiB."
    )


async def main(given: argparse.Namespace) -> None:
    """Measure and write benchmarks/results/gateway.md (unless `--only`: then print)."""
    facts = machine()
    parts = []
    databases = {"SQLite": f"sqlite+aiosqlite:///{given.sqlite}", "PostgreSQL": given.postgres}
    if given.only == "fill":
        for url in filter(None, databases.values()):
            await fill(url, given.changes, given.events)
        return
    if given.only != "lists":
        parts.append(followed_text(*await measure_followers(given.clients, given.rate, given.seconds)))
    if given.only != "follow":
        for name, url in databases.items():
            if not url:
                continue
            found = await measure_lists(url, given.changes, given.events)
            parts.append(listed_text(name, found, given.changes, given.events))
    body = "\n\n".join(parts)
    if given.only:
        print(body)
        return
    command = (
        f"python -m benchmarks.gateway --changes {given.changes} --events {given.events} --clients {given.clients} "
        f"--rate {given.rate:g} --seconds {given.seconds:g}" + (" --postgres URL" if given.postgres else "")
    )
    write("gateway", "Gateway", command, facts, body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description="Measure the gateway.")
    parser.add_argument("--postgres", metavar="URL", help="an empty database")
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", choices=("fill", "lists", "follow"))
    os.environ.setdefault("RESIHP_LOG_LEVEL", "warning")
    with tempfile.TemporaryDirectory(prefix="resihp-bench-") as scratch:
        parser.add_argument("--sqlite", metavar="FILE", type=Path, default=Path(scratch) / "long.db")
        asyncio.run(main(parser.parse_args()))
