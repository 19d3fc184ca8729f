"""examples/subscribe.py on a real server: what was stored first, then what happens, and from where one left off."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from resihp_bus import JetStreamBus, LocalNats
from support.envelopes import event

EXAMPLE = Path(__file__).parents[3] / "examples" / "subscribe.py"


async def read(url: str, *after: str, count: int, bus: JetStreamBus, live: str = "") -> list[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), url, *after, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        found = [(await asyncio.wait_for(process.stdout.readline(), 120)).decode() for _ in range(count)]
        if live:
            await bus.publish(event(live), detail="NodeLeft")
            found.append((await asyncio.wait_for(process.stdout.readline(), 120)).decode())
        return found
    finally:
        process.kill()
        await process.wait()


async def test_a_dozen_lines_are_enough(nats_server: LocalNats, nats_bus: JetStreamBus) -> None:
    for node in ("a", "b"):
        await nats_bus.publish(event(node), detail="NodeLeft")
    lines = await read(nats_server.url, count=2, bus=nats_bus, live="c")
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert "NodeLeft.v1 {'node': 'c'}" in lines[2]
    assert (await read(nats_server.url, "2", count=1, bus=nats_bus))[0].startswith("3 ")
    body = EXAMPLE.read_text().partition("async def main")[2].partition("\n")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 12
