"""Leadership: one holder per token, take-over after the expiry, a zombie writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from resihp_store import LeadershipLost, NodeState, Store, StoreUnavailable, queries
from support.store import node
from support.waiting import wait_for

Connect = Callable[..., Store]


@pytest.fixture
async def connect(store: Store, database_url: str) -> AsyncIterator[Connect]:
    """More stores on the same database, as other processes have; closed however the test ends."""
    made: list[Store] = []

    def one(**options: Any) -> Store:
        made.append(Store(database_url, **options))
        return made[-1]

    yield one
    for other in made:
        await other.close()


async def test_one_holder_and_renewal(store: Store) -> None:
    first = store.lease(holder="a", ttl_s=30)
    second = store.lease(holder="b", ttl_s=30)
    async with store.read() as connection:
        assert await queries.lease(connection) is None
    assert await first.acquire() == 1
    assert await second.acquire() is None
    assert await first.acquire() == 1  # renewal keeps the token
    async with store.read() as connection:
        lease = await queries.lease(connection)
    assert lease is not None
    assert (lease.holder, lease.token) == ("a", 1)
    assert 20 < lease.remaining_s < 31


async def test_take_over_after_expiry_and_zombie_writes_nothing(store: Store) -> None:
    first = store.lease(holder="a", ttl_s=0.2)
    second = store.lease(holder="b", ttl_s=30)
    old = await first.acquire()
    assert old == 1
    new = await wait_for(second.acquire, 5, what="take-over")
    assert new == 2
    assert await first.acquire() is None
    with pytest.raises(LeadershipLost):
        async with store.transaction(old) as work:
            await work.put_node(node("n0"))
    async with store.read() as connection:
        assert await queries.nodes(connection) == ()
    async with store.transaction(new) as work:
        await work.put_node(node("n0"))


async def test_release_lets_the_next_in_at_once(store: Store) -> None:
    first = store.lease(holder="a", ttl_s=30)
    second = store.lease(holder="b", ttl_s=30)
    await first.acquire()
    await second.release()  # not the holder: no effect
    assert await second.acquire() is None
    await first.release()
    assert await second.acquire() == 2


async def test_take_over_waits_for_an_open_transaction_of_the_old_leader(store: Store, connect: Connect) -> None:
    """Otherwise rows of token 1 could be committed after rows of token 2."""
    other = connect()
    first = store.lease(holder="a", ttl_s=0.1)
    second = other.lease(holder="b", ttl_s=30)
    token = await first.acquire()
    assert token == 1
    order: list[str] = []

    async def take_over() -> int:
        taken = await wait_for(second.acquire, 10, what="take-over")
        order.append("taken")
        return taken

    async with store.transaction(token) as work:
        await work.put_node(node("n0"))
        task = asyncio.create_task(take_over())
        await asyncio.wait([task], timeout=0.4)  # longer than the lease: it must still be waiting
        assert not task.done()
        await work.set_node_state("n0", NodeState.LOST)
        order.append("committed")
    assert await task == 2
    assert order == ["committed", "taken"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_leader_frozen_in_a_transaction_cannot_keep_the_lease(store: Store, connect: Connect) -> None:
    """A stopped process (or a vanished machine) holds its row locks until the server ends its session."""
    frozen = connect(idle_in_transaction_s=1.5)
    token = await frozen.lease(holder="a", ttl_s=0.1).acquire()
    assert token == 1

    async def freeze_while_writing() -> None:
        async with frozen.transaction(token) as work:
            await work.put_node(node("n0"))  # and then not a word, as if stopped
            assert await wait_for(store.lease(holder="b", ttl_s=30).acquire, 10, what="take-over") == 2
            await work.set_node_state("n0", NodeState.LOST)

    with pytest.raises(StoreUnavailable):
        await freeze_while_writing()
    async with store.read() as connection:
        assert await queries.nodes(connection) == ()
    with pytest.raises(LeadershipLost):  # awake again, with a new connection
        async with frozen.transaction(token):
            pass


async def test_five_contenders_each_token_has_one_holder(connect: Connect) -> None:
    leases = [connect().lease(holder=f"h{i}", ttl_s=0.05) for i in range(5)]
    holders: dict[int, set[str]] = {}

    async def contend(index: int) -> None:
        while len(holders) < 5:
            token = await leases[index].acquire()
            if token is not None:
                holders.setdefault(token, set()).add(leases[index].holder)
                await asyncio.sleep(0.1)  # let it expire while we "work"
            await asyncio.sleep(0.005)

    await asyncio.wait_for(asyncio.gather(*(contend(i) for i in range(5))), 120)
    assert all(len(names) == 1 for names in holders.values()), holders
