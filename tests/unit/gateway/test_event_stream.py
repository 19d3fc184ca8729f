"""Server-sent events on the memory bus: order, resume, filters, heartbeat, end."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from resihp_gateway.event_stream import HEARTBEAT, event_stream
from support.envelopes import event
from support.gateway import TestGateway, open_gateway
from support.waiting import wait_for


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[TestGateway]:
    async with open_gateway(tmp_path, seeded=False) as opened:
        yield opened


def frames(
    gateway: TestGateway,
    *,
    after: int | None,
    job: str = "*",
    name: str = "*",
    heartbeat_s: float = 5.0,
    closing: asyncio.Event | None = None,
) -> AsyncIterator[bytes]:
    return event_stream(
        gateway.gateway.bus,
        gateway.gateway.tail,
        job=job,
        name=name,
        after_sequence=after,
        heartbeat_s=heartbeat_s,
        closing=closing,
    )


async def publish(gateway: TestGateway, node: str, *, job: str = "demo") -> None:
    await gateway.bus.publish(event(node, job=job), detail="NodeLeft")


async def take(stream: AsyncIterator[bytes], count: int) -> list[tuple[int, str]]:
    """(id, node) of the next events."""
    found: list[tuple[int, str]] = []
    while len(found) < count:
        sent = await asyncio.wait_for(anext(stream), 120)
        for frame in sent.decode().split("\n\n"):  # several at once when they come quickly
            if frame.startswith("id: "):
                identifier, name, data = frame.split("\n")
                assert name == "event: NodeLeft"
                body = json.loads(data.removeprefix("data: "))
                assert body["sequence"] == int(identifier[4:])
                found.append((body["sequence"], body["body"]["node"]))
    return found


async def test_stored_events_first_then_live_ones(gateway: TestGateway) -> None:
    await publish(gateway, "a")
    stream = frames(gateway, after=0)
    assert await take(stream, 1) == [(1, "a")]
    await publish(gateway, "b")
    assert await take(stream, 1) == [(2, "b")]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_resume_repeats_nothing_and_loses_nothing(gateway: TestGateway) -> None:
    for node in "abcd":
        await publish(gateway, node)
    first = frames(gateway, after=0)
    seen = await take(first, 2)
    await first.aclose()  # type: ignore[attr-defined]
    await publish(gateway, "e")
    second = frames(gateway, after=seen[-1][0])
    seen += await take(second, 3)
    await second.aclose()  # type: ignore[attr-defined]
    assert seen == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]


async def test_from_now_on_leaves_out_the_past(gateway: TestGateway) -> None:
    await publish(gateway, "old")
    stream = frames(gateway, after=None)
    assert (await anext(stream)).startswith(b"retry:")
    await publish(gateway, "new")  # nobody waits for it yet, but the stream stands
    assert await take(stream, 1) == [(2, "new")]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_filter_by_job(gateway: TestGateway) -> None:
    await publish(gateway, "a", job="one")
    await publish(gateway, "b", job="two")
    await publish(gateway, "c", job="one")
    stream = frames(gateway, after=0, job="one")
    assert await take(stream, 2) == [(1, "a"), (3, "c")]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_filter_by_name_lets_only_that_name_pass(gateway: TestGateway) -> None:
    await publish(gateway, "a")
    stream = frames(gateway, after=0, name="WorkerLost", heartbeat_s=0.05)
    await anext(stream)
    assert await anext(stream) == HEARTBEAT
    await stream.aclose()  # type: ignore[attr-defined]


async def test_heartbeat_loses_no_event(gateway: TestGateway) -> None:
    """The wait that a heartbeat interrupts must go on, not start anew: nothing may fall between."""
    stream = frames(gateway, after=0, heartbeat_s=0.01)
    await anext(stream)
    for node in "abc":
        assert await anext(stream) == HEARTBEAT
        await publish(gateway, node)
        assert [n for _, n in await take(stream, 1)] == [node]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_ends_when_the_server_closes(gateway: TestGateway) -> None:
    closing = asyncio.Event()
    stream = frames(gateway, after=0, closing=closing)
    await anext(stream)
    closing.set()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(stream), 120)


async def test_many_followers_share_one_reader(gateway: TestGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones begin in the past, by themselves; once they are here, all read the same tail."""
    readers = 0
    replay = gateway.gateway.bus.replay

    def counted(*arguments: object, **more: object) -> object:
        nonlocal readers
        readers += 1
        return replay(*arguments, **more)  # type: ignore[arg-type]

    for node in "ab":
        await publish(gateway, node)
    monkeypatch.setattr(gateway.gateway.bus, "replay", counted)
    streams = [frames(gateway, after=after) for after in (0, 1, None, None, None)]
    for stream in streams:
        await anext(stream)
    waiting = [asyncio.create_task(take(stream, count)) for stream, count in zip(streams, (4, 3, 2, 2, 2), strict=True)]
    tail = gateway.gateway.tail
    await wait_for(lambda: tail._followers == len(streams) and tail.begin == 2, 5)
    for node in "cd":
        await publish(gateway, node)
    found = await asyncio.gather(*waiting)
    assert found[0] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    assert found[1] == found[0][1:]
    assert found[2:] == [found[0][2:]] * 3
    assert readers <= 3  # the tail, and one each for the two that began in the past
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert not [t for t in asyncio.all_tasks() if t.get_name() == "event tail"]


async def test_who_falls_behind_the_tail_loses_nothing(gateway: TestGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.gateway.tail, "_items", deque(maxlen=4))
    monkeypatch.setattr("resihp_gateway.event_tail.KEPT", 4)
    slow, quick = frames(gateway, after=0), frames(gateway, after=0)
    for stream in (slow, quick):
        await anext(stream)
    await publish(gateway, "n0")
    assert await take(slow, 1) == [(1, "n0")]
    for k in range(1, 20):
        await publish(gateway, f"n{k}")
    assert [s for s, _ in await take(quick, 20)] == list(range(1, 21))
    assert [s for s, _ in await take(slow, 19)] == list(range(2, 21))
    for stream in (slow, quick):
        await stream.aclose()  # type: ignore[attr-defined]
