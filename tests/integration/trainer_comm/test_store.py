"""The rendezvous store: waits that end when the key comes, when they are aborted, or when the store goes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from threading import Event

import pytest

from resihp_messages import pack
from resihp_messages.link import HEADER
from resihp_trainer.comm import EpochAborted
from resihp_trainer.comm.rendezvous import AbortableStore, StoreClient, delete_keys
from resihp_trainer.store import start_server
from support.waiting import wait_for


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = await start_server("127.0.0.1")
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def client(address: str, **options: object) -> StoreClient:
    return await asyncio.to_thread(StoreClient, address, timeout_s=5.0, **options)  # type: ignore[arg-type]


async def test_keys_are_set_read_counted_added_and_deleted(address: str) -> None:
    def use() -> None:
        store = StoreClient(address, timeout_s=5.0)
        store.set("a", b"\x00\xff")
        store.set("b", b"")
        assert store.get(["a", "b"], timeout_s=5.0) == [b"\x00\xff", b""]
        assert store.check(["a", "b"])
        assert not store.check(["a", "c"])
        assert store.add("n", 2) == 2
        assert store.add("n", -5) == -3
        assert store.count() == 3
        assert store.delete(["a", "x"]) == 1
        assert store.count() == 2
        store.close()

    await asyncio.to_thread(use)


async def test_a_wait_ends_with_the_last_of_its_keys(address: str) -> None:
    waiting, setting = await client(address), await client(address)
    wait = asyncio.create_task(asyncio.to_thread(waiting.get, ["x", "y"], timeout_s=10.0))
    await asyncio.to_thread(setting.set, "x", b"1")
    assert not wait.done()
    await asyncio.to_thread(setting.set, "y", b"2")
    assert await wait == [b"1", b"2"]
    waiting.close()
    setting.close()


async def test_an_abort_ends_a_wait(address: str) -> None:
    flag = Event()

    def check() -> None:
        if flag.is_set():
            raise EpochAborted(3)

    waiting = await client(address, check=check)
    wait = asyncio.create_task(asyncio.to_thread(waiting.get, ["never"], timeout_s=60.0))
    flag.set()
    with pytest.raises(EpochAborted):
        await asyncio.wait_for(wait, 120)
    with pytest.raises(EpochAborted):
        await asyncio.to_thread(waiting.set, "k", b"")
    waiting.close()


async def test_a_wait_is_bounded(address: str) -> None:
    waiting = await client(address)
    with pytest.raises(TimeoutError, match="did not answer in time"):
        await asyncio.to_thread(waiting.get, ["never"], timeout_s=0.1)
    with pytest.raises(OSError):  # the connection was out of step and is closed
        await asyncio.to_thread(waiting.check, ["never"])


async def test_a_lost_client_leaves_no_wait_behind(address: str) -> None:
    waiting, other = await client(address), await client(address)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(waiting.get, ["late"], timeout_s=0.05)
    await asyncio.to_thread(other.set, "late", b"v")
    assert await asyncio.to_thread(other.get, ["late"], timeout_s=5.0) == [b"v"]
    other.close()


@pytest.mark.parametrize(
    "raw",
    [
        HEADER.pack(1 << 30),
        HEADER.pack(3) + b"\xc1ab",
        *(HEADER.pack(len(body)) + body for body in map(pack, (["fly"], 7, ["set", 1, b""], ["get", [{"a": 1}]]))),
    ],
)
async def test_nonsense_costs_the_connection_and_nothing_else(address: str, raw: bytes) -> None:
    good = await client(address)
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    assert await asyncio.wait_for(reader.read(), 120) == b""
    writer.close()
    await writer.wait_closed()
    await asyncio.to_thread(good.set, "k", b"v")
    assert await asyncio.to_thread(good.count) == 1
    good.close()


async def test_requests_in_pieces_and_in_a_row(address: str) -> None:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = b"".join(HEADER.pack(len(b)) + b for b in (pack(["set", "k", b"v"]), pack(["count"])))
    for byte in raw:
        writer.write(bytes([byte]))
        await writer.drain()
    answer = pack(True), pack(1)
    expected = b"".join(HEADER.pack(len(b)) + b for b in answer)
    assert await asyncio.wait_for(reader.readexactly(len(expected)), 120) == expected
    writer.close()
    await writer.wait_closed()


async def test_a_rank_deletes_what_it_set(address: str) -> None:
    mine, other = await client(address), await client(address)

    def use() -> None:
        store = AbortableStore(mine, 5.0)
        store.set("e1/world/0", b"me")
        other.set("e1/world/1", b"peer")
        store.wait(["e1/world/1"], timedelta(seconds=5))
        assert store.get("e1/world/1") == b"peer"
        assert store.keys_set == ["e1/world/0"]
        delete_keys(address, store.keys_set, 5.0)
        assert other.count() == 1

    await asyncio.to_thread(use)
    mine.close()
    other.close()


async def test_a_store_that_is_gone_or_silent_is_an_os_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = await asyncio.to_thread(StoreClient, f"127.0.0.1:{port}", timeout_s=0.1)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(store.count)
        store = await asyncio.to_thread(StoreClient, f"127.0.0.1:{port}", timeout_s=5.0)
        accepted = [silent.accept()[0] for _ in range(2)]
        for connection in accepted:
            connection.close()
        with pytest.raises(OSError):
            await asyncio.to_thread(store.count)
    with pytest.raises(OSError):
        await asyncio.to_thread(StoreClient, f"127.0.0.1:{port}", timeout_s=1.0)


async def test_connections_of_the_dead_are_forgotten(address: str) -> None:
    """Descriptors do not pile up in the store."""

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(20):
        gone = await client(address)
        gone.close()
    await wait_for(lambda: descriptors() <= before, what="connections closed")
