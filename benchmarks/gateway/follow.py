"""Many followers of the event stream: who gets what, how late, and at what cost to the gateway."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.gateway.running import Running
from benchmarks.report import percentile
from resihp_bus import JetStreamBus, JetStreamSettings
from resihp_messages import Envelope
from resihp_messages.event import NodeLeft


@dataclass(frozen=True)
class Followed:
    """What the followers got, and what it cost."""

    clients: int
    published: int
    rate: float
    """Events per second that were really published."""
    complete: int
    """Clients that got every event, in order, once."""
    deliveries: int
    cores: float
    """Processor time of the gateway over wall time, until the last delivery."""
    median_s: float
    p95_s: float
    longest_s: float


async def follow(running: Running, clients: int, rate: float, seconds: float) -> Followed:
    """`clients` followers of /events (a process of their own) while `rate` events per second are published."""
    total = round(rate * seconds)
    port = urlsplit(running.url).port
    arguments = ("-m", "benchmarks.gateway.followers", str(port), str(clients), str(total))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE, limit=2**26)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert (await asyncio.wait_for(process.stdout.readline(), 120)).strip() == b"ready"
        used, begun = running.processor_s, time.monotonic()
        sent = await _publish(running, total, rate)
        published_s = time.monotonic() - begun
        process.stdin.write(json.dumps(sent).encode() + b"\n")
        answer = json.loads(await asyncio.wait_for(process.stdout.readline(), 180))
        wall, used = time.monotonic() - begun, running.processor_s - used
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    delays = answer["delays_s"]
    return Followed(
        clients=clients,
        published=total,
        rate=total / published_s,
        complete=answer["complete"],
        deliveries=answer["deliveries"],
        cores=used / wall,
        median_s=percentile(delays, 50),
        p95_s=percentile(delays, 95),
        longest_s=max(delays),
    )


async def _publish(running: Running, total: int, rate: float) -> list[float]:
    """Monotonic seconds at each publish call."""
    bus = JetStreamBus(JetStreamSettings(url=running.bus_url), "bench")
    await bus.connect()
    try:
        begun, sent = time.monotonic(), []
        for k in range(total):
            body = Envelope.of(NodeLeft(node=f"n{k}"), job="_fleet", source="bench", incarnation="b")
            sent.append(time.monotonic())
            await bus.publish(body, detail="NodeLeft")
            await asyncio.sleep(max(0.0, begun + (k + 1) / rate - time.monotonic()))
        return sent
    finally:
        await bus.close()
