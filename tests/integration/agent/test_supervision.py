"""An agent, the real zygote's forks, scripted workers: faults of every kind are noticed, told apart and cleaned up."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from resihp_agent import process
from resihp_agent.agent import Agent
from resihp_bus import MemoryBroker, MemoryBus
from resihp_messages import AnyEnvelope, ack, command, encode, event
from resihp_messages.report import IterationReport, NodeBeat
from support.agents import JOB, Hand, agent_settings, data_parallel_plan, job_spec, running_agent
from support.scripted_worker import script
from support.waiting import wait_for

HANG_S = 60.0
"""How long something took is measured in benchmarks/; here it only must not hang."""


@pytest_asyncio.fixture
async def hand() -> AsyncIterator[Hand]:
    broker = MemoryBroker()
    bus = MemoryBus(broker, "test")
    await bus.connect()
    hand = Hand(bus)
    await hand.start()
    yield hand
    await bus.close()


@pytest_asyncio.fixture
async def agent(hand: Hand, tmp_path: Path) -> AsyncIterator[Agent]:
    async with running_agent(agent_settings(tmp_path), MemoryBus(hand.bus.broker, "agent-n0")) as agent:  # type: ignore[attr-defined]
        yield agent


async def train(hand: Hand, *, ranks: tuple[int, ...] = (0, 1, 2), **spec: object) -> dict[int, int]:
    """Starts workers and the first plan; returns pids by rank when an iteration is committed everywhere."""
    await hand.start_workers(job_spec(**spec), ranks)  # type: ignore[arg-type]
    started = await hand.first(ack.WorkersStarted)
    await hand.apply(data_parallel_plan(1, ranks), "initial")
    await hand.first(ack.IterationResumed)
    return dict(zip(started.ranks, started.pids, strict=True))


def is_gone(pid: int) -> bool:
    return process.state_letter(pid) in {"", "Z"}


async def test_life_of_a_job(hand: Hand, agent: Agent) -> None:
    pids = await train(hand, iterations=20)
    assert sorted(pids) == [0, 1, 2]
    prepared, applied = await hand.first(ack.PlanPrepared), await hand.first(ack.PlanApplied)
    assert prepared.ranks == applied.ranks == (0, 1, 2)
    assert applied.bytes_received == (100, 200, 300)
    assert applied.digest == data_parallel_plan(1, (0, 1, 2)).digest
    await wait_for(lambda: len(hand.all(ack.WorkerFinished)) == 3)
    reports = hand.all(IterationReport)
    iterations = [report.iteration for report in reports]
    assert iterations == sorted(iterations)
    assert set(iterations) == set(range(1, 21))  # scripted ranks do not wait for each other: some are incomplete
    await wait_for(lambda: agent.supervisor.num_workers == 0)
    await agent.supervisor.settle()
    assert not hand.all(event.WorkerExited)
    beat = [beat for beat in hand.all(NodeBeat) if beat.workers][-1]
    assert beat.store_address == agent.identity.store_address
    assert {worker.rank for worker in beat.workers} <= {0, 1, 2}


@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_kill_is_noticed_told_and_repaired(hand: Hand, agent: Agent, victim: int) -> None:
    pids = await train(hand)
    os.kill(pids[victim], signal.SIGKILL)
    exited = await hand.first(event.WorkerExited)
    assert (exited.rank, exited.pid, exited.exit_code, exited.fenced) == (victim, pids[victim], -signal.SIGKILL, False)
    assert 0.0 <= exited.detect_s < HANG_S
    survivors = tuple(sorted(set(pids) - {victim}))
    await wait_for(lambda: agent.supervisor.jobs[JOB].notice_s is not None)
    name = await hand.apply(data_parallel_plan(2, survivors), "recovery", dead=(victim,))
    resumed = await hand.first(ack.IterationResumed, reconfiguration_id=name)
    applied = await hand.first(ack.PlanApplied, reconfiguration_id=name)
    assert applied.ranks == resumed.ranks == survivors
    assert applied.plan_s is not None
    assert resumed.since_notice_s > applied.plan_s > 0
    assert {worker.pid for worker in agent.supervisor.workers()} == {pids[rank] for rank in survivors}
    assert len(hand.all(event.WorkerExited)) == 1


async def test_inflicted_kill_stamps_the_start_of_detection(hand: Hand, agent: Agent) -> None:
    await train(hand)
    await hand.command(command.InflictFault(node="n0", token=1, rank=1, fault="kill"))
    exited = await hand.first(event.WorkerExited)
    assert exited.rank == 1
    assert 0.0 < exited.detect_s < HANG_S  # from the fault's own stamp


async def test_frozen_worker_is_fenced_before_anybody_is_told(hand: Hand, agent: Agent) -> None:
    pids = await train(hand)
    await hand.command(command.InflictFault(node="n0", token=1, rank=2, fault="freeze"))
    stalled = await hand.first(event.WorkerStalled)
    exited = await hand.first(event.WorkerExited)
    assert (stalled.rank, stalled.pid, stalled.process_state) == (2, pids[2], "T")
    assert stalled.stalled_s > 0.5
    assert (exited.rank, exited.exit_code, exited.fenced) == (2, -signal.SIGKILL, True)
    assert 0.0 < exited.detect_s < HANG_S  # from the fault; the silence above began with a sign of life before it
    assert is_gone(pids[2])
    names = [type(e.body).__name__ for e in hand.heard if isinstance(e.body, event.WorkerStalled | event.WorkerExited)]
    assert names == ["WorkerStalled", "WorkerExited"]


async def test_running_but_silent_worker_is_fenced(hand: Hand, agent: Agent) -> None:
    await train(hand, path=script(r1="mute@5"))
    stalled = await hand.first(event.WorkerStalled)
    assert stalled.rank == 1
    assert stalled.process_state in {"R", "S"}
    assert (await hand.first(event.WorkerExited)).fenced


@pytest.mark.parametrize(("deed", "code"), [("exit0@5", 0), ("raise@5", 1)])
async def test_exit_without_finishing_is_a_fault(hand: Hand, agent: Agent, deed: str, code: int) -> None:
    await train(hand, path=script(r1=deed))
    exited = await hand.first(event.WorkerExited)
    assert (exited.rank, exited.exit_code, exited.fenced) == (1, code, False)
    if deed.startswith("raise"):
        assert "ZeroDivisionError: scripted" in (agent._settings.work_dir / "logs" / f"{JOB}-r1.log").read_text()


async def test_worker_that_says_why_it_fails_is_no_exit_event_but_releases_its_peers(hand: Hand, agent: Agent) -> None:
    await train(hand, path=script(r1="fail@5"))
    failed = await hand.first(ack.WorkerFailed)
    assert (failed.rank, failed.error) == (1, "scripted failure")
    await wait_for(lambda: agent.supervisor.num_workers == 2)
    await wait_for(lambda: 1 in agent.supervisor.jobs[JOB].dead)
    await hand.command(command.StopJob(node="n0", token=1, reason="rank 1 failed"))
    await wait_for(lambda: agent.supervisor.num_workers == 0)
    await agent.supervisor.settle()
    assert not hand.all(event.WorkerExited)


async def test_fence_leaves_no_helper_process(hand: Hand, agent: Agent) -> None:
    pids = await train(hand, path=script(r1="children"))
    assert len(process.group_members(pids[1])) == 3
    await hand.command(command.FenceWorker(node="n0", token=1, rank=1, reason="test"))
    assert (await hand.first(event.WorkerExited)).fenced
    await wait_for(lambda: not process.group_members(pids[1]))
    await agent.supervisor.settle()


async def test_helper_processes_do_not_outlive_a_killed_worker(hand: Hand, agent: Agent) -> None:
    pids = await train(hand, path=script(r1="children"))
    os.kill(pids[1], signal.SIGKILL)
    await hand.first(event.WorkerExited)
    await wait_for(lambda: not process.group_members(pids[1]))


async def test_worker_that_closes_its_link_but_stays_is_fenced(hand: Hand, agent: Agent) -> None:
    pids = await train(hand, path=script(r0="unlink@5"))
    exited = await hand.first(event.WorkerExited)
    assert (exited.rank, exited.fenced) == (0, True)
    assert is_gone(pids[0])


async def test_stop_kills_a_frozen_worker_too(hand: Hand, agent: Agent) -> None:
    pids = await train(hand, stall_s=5.0)
    os.kill(pids[0], signal.SIGSTOP)
    await hand.command(command.StopJob(node="n0", token=1, reason="test"))
    await wait_for(lambda: all(is_gone(pid) for pid in pids.values()))
    await agent.supervisor.settle()
    assert not hand.all(event.WorkerExited)


async def test_finish_now(hand: Hand, agent: Agent) -> None:
    await train(hand)
    await hand.command(command.FinishJob(node="n0", token=1))
    await wait_for(lambda: len(hand.all(ack.WorkerFinished)) == 3)


async def test_planned_change(hand: Hand, agent: Agent) -> None:
    await train(hand)
    name = await hand.apply(data_parallel_plan(2, (0, 1), standby=(2,)), "planned")
    assert (await hand.first(ack.PlanPrepared, reconfiguration_id=name)).ranks == (0, 1, 2)
    assert (await hand.first(ack.PlanApplied, reconfiguration_id=name)).plan_s == 0.0
    assert (await hand.first(ack.IterationResumed, reconfiguration_id=name)).since_notice_s < HANG_S


async def test_unexplained_failure_is_a_broken_link(hand: Hand, agent: Agent) -> None:
    await train(hand, path=script(r1="broken@5"))
    broken = await hand.first(event.LinkBroken)
    assert (broken.rank, broken.group, broken.error) == (1, "tp0", "connection reset")
    verdict = event.LinkLost(
        evidence={}, verdict=event.Verdict(fault="link_broken", ranks=(), node="n0", p=1.0, confidence=0.9), advice=""
    )
    await hand.event(verdict, epoch=1)
    await wait_for(lambda: all(w.progress().state.name == "WAITING" for w in agent.supervisor.workers()))


async def test_failure_next_to_a_death_is_no_broken_link(hand: Hand, agent: Agent) -> None:
    pids = await train(hand, path=script(r1="broken@40"))
    os.kill(pids[0], signal.SIGKILL)
    await hand.first(event.WorkerExited)
    await hand.apply(data_parallel_plan(2, (1, 2)), "recovery", dead=(0,))
    broken = await hand.first(event.LinkBroken)  # iteration 40 comes in epoch 2, where no death explains it
    assert [e.epoch for e in hand.heard if e.body is broken] == [2]
    assert len(hand.all(event.LinkBroken)) == 1


async def test_death_on_another_node_aborts_local_workers(hand: Hand, agent: Agent) -> None:
    await train(hand, ranks=(0, 1))
    await hand.apply(data_parallel_plan(2, (0, 1, 7)), "planned")
    await hand.first(ack.IterationResumed, reconfiguration_id="rc-2-1")
    remote = event.WorkerExited(node="n1", rank=7, pid=1, exit_code=-9, iteration=3, detect_s=0.01)
    await hand.event(remote, epoch=2)
    await wait_for(lambda: all(w.progress().state.name == "WAITING" for w in agent.supervisor.workers()))


async def test_recovery_plan_makes_up_for_a_missed_remote_death(hand: Hand, agent: Agent) -> None:
    await train(hand, ranks=(0, 1))
    await hand.apply(data_parallel_plan(2, (0, 1, 7)), "planned")
    await hand.first(ack.IterationResumed, reconfiguration_id="rc-2-1")
    name = await hand.apply(data_parallel_plan(3, (0, 1)), "recovery", dead=(7,))
    await hand.first(ack.IterationResumed, reconfiguration_id=name)
    assert set(agent.supervisor.jobs[JOB].dead) == {7}


async def test_stale_token_and_stale_epoch_are_refused_also_after_a_restart(hand: Hand, tmp_path: Path) -> None:
    broker = hand.bus.broker  # type: ignore[attr-defined]
    async with running_agent(agent_settings(tmp_path), MemoryBus(broker, "agent-n0")):
        await train(hand)
        name = await hand.apply(data_parallel_plan(2, (0, 1)), "planned", token=5)
        await hand.first(ack.IterationResumed, reconfiguration_id=name)
        name = await hand.apply(data_parallel_plan(3, (0, 2)), "recovery", token=4)
        assert "token 4" in (await hand.first(ack.PlanRejected, reconfiguration_id=name)).reason
        await hand.apply(data_parallel_plan(2, (0, 2)), "recovery", token=6)
        assert "not newer" in (await hand.first(ack.PlanRejected, reconfiguration_id="rc-2-6")).reason
    hand.heard.clear()
    async with running_agent(agent_settings(tmp_path), MemoryBus(broker, "agent-n0"), incarnation="a2") as agent:
        name = await hand.apply(data_parallel_plan(9, (0, 1)), "recovery", token=5)
        assert "token 5" in (await hand.first(ack.PlanRejected, reconfiguration_id=name)).reason
        await hand.command(
            command.StartWorkers(node="n0", token=9, agent_incarnation="a1", ranks=(0,), spec=job_spec())
        )
        await hand.start_workers(job_spec(), (1,), token=9)
        assert (await hand.first(ack.WorkersStarted)).ranks == (1,)  # what was meant for the dead agent is void
        assert agent.supervisor.num_workers == 1


async def test_start_is_idempotent_and_bounded_by_slots(hand: Hand, agent: Agent) -> None:
    pids = await train(hand)
    await hand.start_workers(job_spec(), (0, 1, 2))
    await wait_for(lambda: len(hand.all(ack.WorkersStarted)) == 2)
    assert (
        dict(zip(*(hand.all(ack.WorkersStarted)[1].ranks, hand.all(ack.WorkersStarted)[1].pids), strict=True)) == pids
    )
    await hand.start_workers(job_spec(), (3, 4))
    assert "1 free slots" in (await hand.first(ack.WorkerFailed)).error


async def test_start_waits_for_workers_that_leave(hand: Hand, agent: Agent) -> None:
    """The scheduler deals a job's slots to the next one as soon as it has decided that the job ends."""
    await train(hand, ranks=(0, 1, 2, 3))
    await hand.command(command.StopJob(node="n0", token=1, reason="the next one"))
    next_job = job_spec().model_copy(update={"name": "next"})
    start = command.StartWorkers(node="n0", token=1, ranks=(0, 1, 2, 3), spec=next_job)
    await hand.command(start, job="next")
    await wait_for(lambda: len(hand.all(ack.WorkersStarted)) == 2)
    assert not hand.all(ack.WorkerFailed)
    assert {worker.job for worker in agent.supervisor.workers()} == {"next"}


async def test_redelivered_command_is_obeyed_once(hand: Hand, agent: Agent) -> None:
    pids = await train(hand)
    fault = command.InflictFault(node="n0", token=1, rank=0, fault="kill")
    await hand.command(fault, message_id="same")
    await hand.first(event.WorkerExited)
    await hand.start_workers(job_spec(), (0,))
    again = await hand.first(ack.WorkersStarted, ranks=(0,))
    # The same message once more, as JetStream would after a lost acknowledgement.
    again_envelope = AnyEnvelope.of(fault, job=JOB, source="s", incarnation="s1", message_id="same")
    hand.bus.broker.inject(f"resihp.v1.{JOB}.command.n0", encode(again_envelope))  # type: ignore[attr-defined]
    await hand.start_workers(job_spec(), (0, 1, 2))
    await hand.first(ack.WorkersStarted, ranks=(0, 1, 2), pids=(again.pids[0], pids[1], pids[2]))
    assert again.pids[0] != pids[0]
    assert not is_gone(again.pids[0])


async def test_slow_start_is_not_a_stall(hand: Hand, agent: Agent) -> None:
    await hand.start_workers(job_spec(path=script(r0="slowstart@1"), stall_s=0.2), (0, 1))
    await hand.first(ack.WorkersStarted)
    assert not hand.all(event.WorkerStalled)


async def test_worker_that_dies_while_starting_is_reported(hand: Hand, agent: Agent) -> None:
    await hand.start_workers(job_spec(path=script(r0="slowstart@1")), (0, 1))
    worker = await wait_for(lambda: next(iter(agent.supervisor.workers()), None))
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert (await hand.first(event.WorkerExited)).rank == worker.rank == 0
    assert (await hand.first(ack.WorkersStarted)).ranks == (1,)  # which need not wait for it


async def test_store_that_dies_is_started_anew_and_training_goes_on(hand: Hand, agent: Agent) -> None:
    await train(hand)
    first = agent.identity.store_address
    os.kill(agent._store_pid, signal.SIGKILL)
    await wait_for(lambda: agent.identity.store_address != first)
    await wait_for(lambda: len(hand.all(event.NodeJoined)) == 2)
    assert hand.all(event.NodeJoined)[1].store_address == agent.identity.store_address
    seen = max(report.iteration for report in hand.all(IterationReport))
    await wait_for(lambda: max(report.iteration for report in hand.all(IterationReport)) > seen)


async def test_reports_and_beats_are_dropped_and_events_kept_while_the_bus_is_down(hand: Hand, agent: Agent) -> None:
    pids = await train(hand)
    broker = hand.bus.broker  # type: ignore[attr-defined]
    broker.available = False
    os.kill(pids[1], signal.SIGKILL)
    await wait_for(lambda: agent.outbox.depth == 1)
    await wait_for(lambda: agent.announcer.num_dropped_beats > 2)
    survivor = next(iter(agent.supervisor.workers()))
    await wait_for(lambda: survivor.progress().state.name == "WAITING")  # the abort needed no bus
    broker.available = True
    assert (await hand.first(event.WorkerExited)).rank == 1
    await asyncio.wait_for(agent.outbox.flush(5.0), 120)
    assert len(hand.all(event.WorkerExited)) == 1
