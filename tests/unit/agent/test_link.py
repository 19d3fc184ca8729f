"""The agent's end of a worker's socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from resihp_agent.link import WorkerLink
from resihp_messages import link
from support.waiting import wait_for


@dataclass
class Ends:
    """A link and the worker's end of it."""

    worker: socket.socket
    link: WorkerLink = field(init=False)
    frames: list[link.UpFrame] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[Ends]:
    ours, theirs = socket.socketpair()
    made = Ends(theirs)
    made.link = WorkerLink(ours, on_frame=made.frames.append, on_closed=made.closed.append)
    yield made
    made.link.close()
    theirs.close()


def hello(rank: int = 1) -> link.Hello:
    return link.Hello(rank=rank, pid=5)


async def test_frames_arrive_whole_however_they_are_cut(ends: Ends) -> None:
    raw = link.frame(hello(1)) + link.frame(hello(2)) + link.frame(hello(3))
    for i in range(0, len(raw), 7):
        ends.worker.sendall(raw[i : i + 7])
        await asyncio.sleep(0)
    await wait_for(lambda: len(ends.frames) == 3)
    assert ends.frames == [hello(1), hello(2), hello(3)]


async def test_a_sent_frame_is_with_the_kernel_before_the_call_returns(ends: Ends) -> None:
    stop = link.StopNow(reason="now")
    assert ends.link.send(stop)
    ends.worker.setblocking(False)
    raw = ends.worker.recv(4096)  # no turn of the loop in between
    assert link.parse_down(raw[4:]) == stop


async def test_a_slow_reader_gets_everything_in_order(ends: Ends) -> None:
    big = [link.StopNow(reason=str(i) * 4000) for i in range(10)] * 20
    for message in big:
        assert ends.link.send(message)
    wanted = b"".join(map(link.frame, big))
    got = bytearray()
    ends.worker.setblocking(False)
    loop = asyncio.get_running_loop()
    while len(got) < len(wanted):
        got += await asyncio.wait_for(loop.sock_recv(ends.worker, 1 << 16), 120)
    assert bytes(got) == wanted


async def test_a_worker_that_reads_nothing_cannot_fill_the_memory(ends: Ends) -> None:
    message = link.StopNow(reason="x" * 4096)
    for _ in range(10_000):
        if not ends.link.send(message):
            break
    assert ends.closed == ["the worker reads nothing"]
    assert not ends.link.send(message)


async def test_last_words_are_read_after_the_end(ends: Ends) -> None:
    ends.worker.sendall(link.frame(hello()))
    ends.worker.close()
    ends.link.drain()
    assert ends.frames == [hello()]
    assert ends.closed == ["the worker closed the link"]


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x01\x80"])
async def test_nonsense_closes_the_link(ends: Ends, raw: bytes) -> None:
    ends.worker.sendall(link.frame(hello()) + raw + link.frame(hello()))
    await wait_for(lambda: ends.closed)
    assert ends.closed[0].startswith("broken frame")
    assert ends.frames == [hello()]


async def test_closing_from_our_side_is_silent(ends: Ends) -> None:
    ends.link.close()
    assert ends.closed == []
    assert not ends.link.send(link.StopNow())
