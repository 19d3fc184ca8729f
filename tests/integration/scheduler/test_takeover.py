"""The leader dies or freezes: the other takes over, exactly one plan per fault, and a zombie writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable

import psutil
import pytest

from resihp_bus import Bus
from resihp_messages import AnyEnvelope, Kind, command, event
from resihp_store import JobState
from resihp_store.engine import sqlite_path
from support.scheduler_process import SchedulerProcess, leads
from support.scheduler_rig import Rig
from support.scripted_agent import ScriptedAgent, declare, small_spec
from support.waiting import wait_for, wait_for_blocking

Spawn = Callable[..., SchedulerProcess]

MOSTLY_POSTGRESQL = pytest.mark.parametrize(
    "rig", ["postgresql", pytest.param("sqlite", marks=pytest.mark.soak)], indirect=True
)
"""Each test starts several processes; what differs between the databases is in tests/contract/store."""


async def two_schedulers(rig: Rig, spawn: Spawn) -> tuple[SchedulerProcess, SchedulerProcess]:
    """(leader, the other one), with a running job."""
    pair = spawn("s1"), spawn("s2")
    lease = await leads(rig.store, *(p.incarnation for p in pair))
    leader, other = sorted(pair, key=lambda p: p.incarnation != lease.holder)
    await rig.add_agents("a", "b")
    await rig.running()
    return leader, other


def freeze_outside_a_transaction(scheduler: SchedulerProcess, rig: Rig) -> None:
    """On SQLite, a process frozen while it writes blocks every writer for good (PostgreSQL ends its session)."""
    path = sqlite_path(rig.store.url)
    if path is None:
        scheduler.signal(signal.SIGSTOP)
        return
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as mine:
        mine.execute("BEGIN IMMEDIATE")  # while I write, it does not
        scheduler.signal(signal.SIGSTOP)
        wait_for_blocking(lambda: psutil.Process(scheduler.process.pid).status() == psutil.STATUS_STOPPED)


def assert_each_plan_once(rig: Rig, newest: int) -> None:
    for agent in rig.agents.values():
        epochs = [e.epoch for e in agent.obeyed if isinstance(e.body, command.ApplyPlan)]
        assert epochs == list(range(1, newest + 1)), agent.node
        assert agent.refused == []


async def stored(bus: Bus, kind: Kind) -> list[AnyEnvelope]:
    """Everything in a stream."""
    last, found = await bus.last_sequence(kind), []
    async with contextlib.aclosing(bus.replay(kind, after_sequence=0)) as messages:
        async for message in messages:
            found.append(message.envelope)
            if message.sequence >= last:
                break
    return found


async def test_leader_killed_as_a_verdict_arrives(rig: Rig, spawn: Spawn) -> None:
    leader, other = await two_schedulers(rig, spawn)
    await declare(rig.bus, [3], node="a")
    leader.kill()
    lease = await leads(rig.store, other.incarnation)
    assert lease.token == 2
    await rig.applied(2)
    assert_each_plan_once(rig, 2)
    assert len(await rig.incidents()) == 1


@MOSTLY_POSTGRESQL
async def test_frozen_leader_becomes_a_zombie_that_writes_nothing(rig: Rig, spawn: Spawn) -> None:
    leader, other = await two_schedulers(rig, spawn)
    freeze_outside_a_transaction(leader, rig)
    await declare(rig.bus, [3], node="a")
    lease = await leads(rig.store, other.incarnation)
    await rig.applied(2)
    leader.signal(signal.SIGCONT)
    await wait_for(lambda: "not leader any more" in leader.log, 20, what="the zombie steps down")
    await declare(rig.bus, [6], node="b", epoch=2)
    await rig.applied(3)
    assert (await leads(rig.store, other.incarnation)).token == lease.token == 2
    assert leader.process.poll() is None  # it lives, and waits for its turn
    assert_each_plan_once(rig, 3)
    tokens = [e.body.token for e in rig.agents["a"].obeyed if isinstance(e.body, command._Command)]
    assert tokens == sorted(tokens)
    other.kill()
    assert (await leads(rig.store, leader.incarnation)).token == 3
    await declare(rig.bus, [0], node="a", epoch=3)
    await rig.applied(4)
    assert_each_plan_once(rig, 4)


@MOSTLY_POSTGRESQL
async def test_orderly_end_hands_over_at_once(rig: Rig, spawn: Spawn) -> None:
    first = spawn("s1", lease_ttl_s=60.0)
    await leads(rig.store, first.incarnation)
    second = spawn("s2", lease_ttl_s=60.0)
    await wait_for(lambda: "ready" in second.log, 30, what="the second one waits")
    first.signal(signal.SIGTERM)
    assert first.process.wait(20) == 0
    await leads(rig.store, second.incarnation, timeout_s=20)  # far below the ttl


@MOSTLY_POSTGRESQL
@pytest.mark.timeout(300)  # four starts of a process
async def test_killed_again_and_again_each_fault_is_answered_exactly_once(rig: Rig, spawn: Spawn) -> None:
    """Kills strike anywhere: before the commit, between commit and publish, before the acknowledgement."""
    rng = random.Random(11)
    scheduler = spawn("s1", lease_ttl_s=0.5)
    await leads(rig.store, scheduler.incarnation)
    await rig.add_agents("a", "b")
    await rig.running()
    newest = 1
    for _ in range(3):
        await declare(rig.bus, [], node="a", kind=event.LinkLost, epoch=newest)
        newest += 1
        await asyncio.sleep(rng.uniform(0.0, 0.03))  # not to wait for anything: to strike at any moment
        scheduler.kill()
        scheduler.start()
        await rig.applied(newest)
    assert_each_plan_once(rig, newest)
    assert len(await rig.incidents()) == 3
    # Live listeners may hear a message twice (published, killed before it was marked); the streams hold it once.
    for kind in (Kind.EVENT, Kind.COMMAND):
        counts = Counter(e.message_id for e in await stored(rig.bus, kind))
        assert set(counts.values()) == {1}
    planned = [e for e in await stored(rig.bus, Kind.EVENT) if isinstance(e.body, event.ReconfigurationPlanned)]
    assert [e.epoch for e in planned] == [2, 3, 4]


@MOSTLY_POSTGRESQL
async def test_job_that_started_while_nobody_led(rig: Rig, spawn: Spawn) -> None:
    """Cold start: acknowledgements and good-byes that came in between are not lost."""
    first = spawn("s1", lease_ttl_s=0.5)
    await leads(rig.store, first.incarnation)
    agents: list[ScriptedAgent] = list(await rig.add_agents("a", "b", starts=False))
    await rig.submit(small_spec())
    await wait_for(lambda: all("demo" in agent.ranks for agent in agents), 10)
    first.kill()
    for agent in agents:
        await agent.started("demo")
    first.start()
    await rig.applied(1)
    first.kill()
    for agent in agents:
        await agent.finish("demo")
    first.start()
    await rig.state(JobState.FINISHED)
    assert_each_plan_once(rig, 1)
