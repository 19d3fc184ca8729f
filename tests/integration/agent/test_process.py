"""`python -m resihp_agent` against a real server: how it starts, how it ends, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest_asyncio

from resihp_agent import process
from resihp_bus import BusUnavailable, JetStreamBus, LocalNats
from resihp_messages import Kind, ack, event
from support.agents import Hand, agent_process, data_parallel_plan, job_spec
from support.scripted_worker import script
from support.waiting import wait_for


@pytest_asyncio.fixture
async def hand(nats_bus: JetStreamBus) -> Hand:
    hand = Hand(nats_bus)
    await hand.start()
    return hand


async def train(hand: Hand, *, path: str | None = None) -> dict[int, int]:
    """Three workers that train; pids by rank."""
    await hand.start_workers(job_spec(path=path, stall_s=2.0), (0, 1, 2))
    started = await hand.first(ack.WorkersStarted)
    await hand.apply(data_parallel_plan(1, (0, 1, 2)), "initial")
    await hand.first(ack.IterationResumed)
    return dict(zip(started.ranks, started.pids, strict=True))


def descendants(pid: int) -> set[int]:
    """Every process below `pid`, by parent links."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, grown = {pid}, True
    while grown:
        grown = False
        for child, parent in parents.items():
            if parent in found and child not in found:
                found.add(child)
                grown = True
    return found - {pid}


def all_gone(pids: set[int]) -> bool:
    return all(process.state_letter(pid) in {"", "Z"} for pid in pids)


async def test_sigterm_stops_workers_says_good_bye_and_leaves_nothing(
    hand: Hand, nats_server: LocalNats, tmp_path: Path
) -> None:
    with agent_process(nats_server.url, tmp_path / "a") as agent:
        joined = await hand.first(event.NodeJoined, 20.0)
        assert (joined.node, joined.num_slots) == ("n0", 4)
        await train(hand)
        below = descendants(agent.pid)
        assert len(below) == 5  # zygote, store, three workers
        assert await agent.stop() == 0
        await hand.first(event.NodeLeft)
        await wait_for(lambda: all_gone(below))
        assert not hand.all(event.WorkerExited)


async def test_sigkill_of_the_agent_leaves_nothing(hand: Hand, nats_server: LocalNats, tmp_path: Path) -> None:
    with agent_process(nats_server.url, tmp_path / "a") as agent:
        await hand.first(event.NodeJoined, 20.0)
        await train(hand, path=script(r1="children"))
        below = descendants(agent.pid)
        assert len(below) == 7
        agent.kill()
        await wait_for(lambda: all_gone(below))


async def test_an_agent_without_its_zygote_reports_every_worker_and_ends(
    hand: Hand, nats_server: LocalNats, tmp_path: Path
) -> None:
    with agent_process(nats_server.url, tmp_path / "a") as agent:
        await hand.first(event.NodeJoined, 20.0)
        pids = await train(hand)
        below = descendants(agent.pid)
        [zygote] = [p for p in below if p not in pids.values() and descendants(p)]
        os.kill(zygote, signal.SIGKILL)
        assert await agent.ended() == 2
        assert agent.complaint().startswith("resihp agent: the zygote is gone")
        await wait_for(lambda: len(hand.all(event.WorkerExited)) == 3)
        assert {body.rank for body in hand.all(event.WorkerExited)} == {0, 1, 2}
        await hand.first(event.NodeLeft)
        await wait_for(lambda: all_gone(below))


async def test_a_killed_server_loses_no_event_and_repeats_none(
    hand: Hand, nats_server: LocalNats, nats_bus: JetStreamBus, tmp_path: Path
) -> None:
    with agent_process(nats_server.url, tmp_path / "a"):
        await hand.first(event.NodeJoined, 20.0)
        pids = await train(hand)
        nats_server.kill()
        os.kill(pids[1], signal.SIGKILL)
        await wait_for(lambda: process.state_letter(pids[1]) in {"", "Z"})
        nats_server.restart()
        await wait_for(lambda: nats_bus.connected)

        async def stored() -> list[event.WorkerExited]:
            last = await nats_bus.last_sequence(Kind.EVENT)
            found = []
            async with contextlib.aclosing(nats_bus.replay(Kind.EVENT, after_sequence=0)) as messages:
                async for message in messages:
                    if isinstance(message.envelope.body, event.WorkerExited):
                        found.append(message.envelope.body)
                    if message.sequence >= last:
                        break
            return found

        async def stored_by_now() -> list[event.WorkerExited]:
            with contextlib.suppress(BusUnavailable):  # a server that has just started may not know its streams yet
                return await stored()
            return []

        await wait_for(stored_by_now, 15.0)
        name = await hand.apply(data_parallel_plan(2, (0, 2)), "recovery", dead=(1,))
        await hand.first(ack.IterationResumed, 15.0, reconfiguration_id=name)  # commands work again, too
        assert [(body.rank, body.pid) for body in await stored()] == [(1, pids[1])]


async def test_reasons_not_to_start(nats_server: LocalNats, hand: Hand, tmp_path: Path) -> None:
    with agent_process(nats_server.url, tmp_path / "a") as first:
        await first.ready()
        with agent_process(nats_server.url, tmp_path / "b", RESIHP_AGENT_WORK_DIR=tmp_path / "a" / "work") as second:
            assert await second.ended() == 2
            assert "another agent uses the work folder" in second.complaint()
    url, unreachable = nats_server.url, {"RESIHP_BUS_URL": "nats://127.0.0.1:9", "RESIHP_BUS_CONNECT_TIMEOUT_S": 1.0}
    with (
        agent_process(url, tmp_path / "c", **unreachable) as lonely,
        agent_process(url, tmp_path / "d", RESIHP_AGENT_BEAT_PERIOD_S="often") as confused,
        agent_process(url, tmp_path / "e", RESIHP_AGENT_ZYGOTE_COMMAND='["/no/such/program"]') as barren,
    ):
        assert [await agent.ended() for agent in (lonely, confused, barren)] == [2, 2, 2]
        assert "127.0.0.1:9" in lonely.complaint()
        assert "RESIHP_AGENT_BEAT_PERIOD_S" in confused.complaint()
        assert "cannot start the zygote" in barren.complaint()
