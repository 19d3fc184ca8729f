"""Followers of `/events` in a process of their own: `python -m benchmarks.gateway.followers PORT CLIENTS TOTAL`.

Plain sockets that only look for ids, so that 200 clients cost little beside the gateway that they measure. Says `ready`
on stdout when all streams stand; gets the times at which the events were published (monotonic seconds, JSON list) on
stdin, and answers with one JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import time
from dataclasses import dataclass, field

ID = re.compile(rb"\nid: (\d+)\n")
LONGEST_WAIT_S = 120.0


@dataclass
class Follower(asyncio.Protocol):
    """One client."""

    port: int
    total: int
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    rest: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % self.port)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        data = self.rest + data
        if not self.opened.is_set() and b": open" in data:
            self.opened.set()
        end = 0
        for found in ID.finditer(data):
            self.ids.append(int(found[1]))
            self.arrivals.append(now)
            end = found.end() - 1
        self.rest = data[max(end, len(data) - 64) :]
        if len(self.ids) >= self.total:
            self.complete.set()


async def main(port: int, clients: int, total: int) -> None:
    loop = asyncio.get_running_loop()
    followers = [Follower(port, total) for _ in range(clients)]
    for follower in followers:
        await loop.create_connection(lambda f=follower: f, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.wait_for(asyncio.gather(*(f.opened.wait() for f in followers)), 60)
    print("ready", flush=True)
    line = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    done = asyncio.gather(*(f.complete.wait() for f in followers))
    published = json.loads(await line)
    with contextlib.suppress(TimeoutError):  # the report says who has not got everything
        await asyncio.wait_for(done, LONGEST_WAIT_S)
    print(json.dumps(report(followers, published)), flush=True)


def report(followers: list[Follower], published: list[float]) -> dict[str, object]:
    """How many got everything once and in order, and the delays of all deliveries, sorted, in seconds."""
    total = len(published)
    first = min(f.ids[0] for f in followers if f.ids)
    whole = sum(f.ids == list(range(first, first + total)) for f in followers)
    delays = sorted(
        at - published[k - first]
        for f in followers
        for k, at in zip(f.ids, f.arrivals, strict=True)
        if 0 <= k - first < total
    )
    return {"complete": whole, "deliveries": len(delays), "delays_s": delays[:: max(1, len(delays) // 10_000)]}


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:4])))
