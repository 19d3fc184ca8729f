"""The lists again, asked inside the gateway's own process: what each costs in processor time (driver and JSON included,
a database server not), which a busy machine does not change. `python -m benchmarks.gateway.inside URL`, on a database
that `python -m benchmarks.gateway --only fill` has filled. Prints a table."""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median

import httpx

from benchmarks.gateway.lists import LISTS
from benchmarks.report import table
from resihp_bus import MemoryBroker, MemoryBus
from resihp_chassis import Service, SystemClock
from resihp_gateway.bootstrap import bootstrap
from resihp_gateway.settings import GatewaySettings

REPEATS = 3


async def main(url: str) -> None:
    service = Service("gateway", GatewaySettings(database_url=url), SystemClock())
    process = bootstrap(service, bus=MemoryBus(MemoryBroker()))
    gateway = process.gateway
    await gateway.store.open()
    await gateway.bus.connect()
    transport = httpx.ASGITransport(process.app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway/api/v1", timeout=300) as client:
            rows = [await _cost(client, what, path) for what, path in LISTS]
    finally:
        await gateway.bus.close()
        await gateway.store.close()
    print(table(("list", "processor ms, median", "longest"), rows))


async def _cost(client: httpx.AsyncClient, what: str, path: str) -> tuple[str, str, str]:
    """The first answer prepares the statement and is left out."""
    taken = []
    for _ in range(1 + REPEATS):
        begun = time.process_time()
        (await client.get(path)).raise_for_status()
        taken.append((time.process_time() - begun) * 1e3)
    return what, f"{median(taken[1:]):.1f}", f"{max(taken[1:]):.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.inside", description="Processor time of lists.")
    parser.add_argument("url", help="of a filled database")
    asyncio.run(main(parser.parse_args().url))
