"""Ranks -> agent -> detector -> scheduler -> database, all real, on the in-memory bus: who is slow, dead, hanging."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from resihp_agent.bootstrap import bootstrap
from resihp_bus import Bus, MemoryBroker, MemoryBus
from resihp_chassis import Service, SystemClock
from resihp_detector.bootstrap import run as run_detector
from resihp_detector.settings import DetectorSettings
from resihp_messages import Kind, event
from resihp_messages.attach import AttachIteration
from resihp_store import JobState, Store
from resihp_store.revisions import upgrade
from support.agents import agent_settings
from support.attach import Stage
from support.scheduler_rig import Rig
from support.waiting import wait_for

WORLD = 4


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    url, broker = f"sqlite+aiosqlite:///{tmp_path / 'resihp.db'}", MemoryBroker()

    async def new_bus() -> Bus:
        return MemoryBus(broker)

    await upgrade(url)
    bus, store = await new_bus(), Store(url)
    await bus.connect()
    made = Rig(new_bus, url, bus, store)
    await made.watch_events()
    yield made
    await bus.close()
    await store.close()


@pytest.fixture
async def stage(rig: Rig, tmp_path: Path) -> AsyncIterator[Stage]:
    """Scheduler, detector and an agent, and four ranks that are known to all of them."""
    settings = agent_settings(
        tmp_path, zygote_command=(), attach_stall_s=0.3, collateral_s=0.3, restart_wait_s=0.5, own_pause_s=5.0
    )
    async with rig.scheduler():
        detector = Service("detector", DetectorSettings(own_pause_s=5.0), SystemClock())
        detecting = asyncio.create_task(run_detector(detector, bus=await rig.new_bus()))
        agent = bootstrap(settings, bus=await rig.new_bus())
        running = asyncio.create_task(agent.run())
        await wait_for(lambda: agent.is_ready and detector.started, 20.0, what="agent and detector")
        made = Stage(agent, [])
        for rank in range(WORLD):
            made.start(rank, world=WORLD)
        await wait_for(lambda: agent.attached._jobs["j"].epoch == 1, 20.0, what="the job is known")
        yield made
        agent.stop()
        detector.stop()
        await asyncio.gather(running, detecting)
        made.close()


async def train(stage: Stage, bus: Bus, first: int, last: int, slow: dict[int, float] | None = None) -> None:
    """Iterations of varying lengths; `slow`: rank -> speed."""
    draw = random.Random(first)
    for number in range(first, last + 1):
        for rank in range(WORLD):
            tokens = [draw.randint(100, 200) for _ in range(2)]
            p = (slow or {}).get(rank, 1.0)
            seconds = [1e-4 * (n + n * n / 500) * draw.gauss(1.0, 0.02) / p for n in tokens]
            frame = AttachIteration(
                iteration=number,
                step_s=0.2,
                unit_forward_s=tuple(s / 3 for s in seconds),
                unit_backward_s=tuple(2 * s / 3 for s in seconds),
                unit_tokens=tuple(tokens),
                unit_sum_sq_len=tuple(n * n for n in tokens),
                wait_s=0.01,
            )
            stage.agent.attached.frame(stage.processes[rank].pid, frame)
        if number % 10 == 0:  # reports are handed over without waiting: let the loop publish them
            await wait_for(lambda: stored(bus), 5.0)
    await asyncio.sleep(0)


async def stored(bus: Bus) -> bool:
    return await bus.last_sequence(Kind.REPORT) > 0


def verdicts(rig: Rig) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (e.schema_.partition(".")[0], e.body.verdict.ranks)
        for e in rig.events
        if isinstance(e.body, event._FailureEvent)
    ]


async def test_a_slow_rank_is_named_and_nobody_else(stage: Stage, rig: Rig) -> None:
    await train(stage, rig.bus, 1, 60)
    await train(stage, rig.bus, 61, 80, slow={2: 0.7})
    (found,) = await rig.heard(event.DeviceSlow)
    body: Any = found.body
    assert body.verdict.ranks == (2,)
    assert 61 <= body.evidence["first_iteration"] <= body.evidence["iteration"] <= 67
    assert body.verdict.p == pytest.approx(0.7, abs=0.06)
    assert {ranks for name, ranks in verdicts(rig) if name in ("DeviceSlow", "DeviceSuspected")} == {(2,)}

    async def recorded() -> bool:
        slow = [i.ranks for i in await rig.incidents("j") if i.kind == "device_slow"]
        return slow == [(2,)]

    await wait_for(recorded, 20.0, what="the incident")


async def test_a_dead_rank_is_named_and_the_job_fails_with_its_launcher(stage: Stage, rig: Rig) -> None:
    await train(stage, rig.bus, 1, 5)
    stage.send(3, signal.SIGKILL)
    for rank in range(3):
        stage.send(rank, signal.SIGTERM)
    job = await rig.state(JobState.FAILED, "j")
    assert "rank 3" in job.reason
    assert verdicts(rig) == [("WorkerLost", (3,))]


async def test_a_job_that_outlives_a_rank_has_not_failed(stage: Stage, rig: Rig) -> None:
    """As under `resihp launch`."""
    await train(stage, rig.bus, 1, 5)
    stage.send(3, signal.SIGKILL)
    await rig.heard(event.WorkerLost)
    for rank in range(3):
        stage.finish(rank)
    await rig.state(JobState.FINISHED, "j")
    assert verdicts(rig) == [("WorkerLost", (3,))]
    await wait_for(lambda: "j" not in stage.agent.attached._jobs, 20.0, what="the end of the job here")
    assert not (await rig.state(JobState.FINISHED, "j")).reason


async def test_a_frozen_rank_is_named_while_it_lives(stage: Stage, rig: Rig) -> None:
    await train(stage, rig.bus, 1, 5)
    stage.send(1, signal.SIGSTOP)
    (found,) = await rig.heard(event.WorkerFrozen)
    assert isinstance(found.body, event.WorkerFrozen)
    assert found.body.verdict.ranks == (1,)
    assert f"process {stage.processes[1].pid}" in found.body.advice


async def test_a_hang_names_who_did_not_come(stage: Stage, rig: Rig) -> None:
    await train(stage, rig.bus, 1, 5)
    for rank in range(WORLD):
        stage.beat(rank, quiet_s=61.0, seq=6 if rank == 0 else 7)
    (found,) = await rig.heard(event.JobHung)
    assert isinstance(found.body, event.JobHung)
    assert found.body.verdict.ranks == (0,)
    collectives: Any = found.body.evidence["last_collective"]
    assert collectives["0"] == "all_reduce #6 of dp"
    assert collectives["3"] == "all_reduce #7 of dp"


async def test_a_job_that_was_started_again_is_judged_anew(stage: Stage, rig: Rig) -> None:
    await train(stage, rig.bus, 1, 40)
    stage.send(0, signal.SIGKILL)
    await rig.heard(event.WorkerLost)
    old = dict(stage.processes)
    for rank in range(WORLD):
        stage.start(rank, world=WORLD, start=1)
    await wait_for(lambda: stage.agent.attached._jobs["j"].epoch == 2, 20.0, what="the second start is known")
    await train(stage, rig.bus, 1, 40)  # iterations are counted from 1 again
    await train(stage, rig.bus, 41, 55, slow={3: 0.6})
    (found,) = await rig.heard(event.DeviceSlow)
    assert isinstance(found.body, event.DeviceSlow)
    assert (found.epoch, found.body.verdict.ranks) == (2, (3,))
    for process in old.values():
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
