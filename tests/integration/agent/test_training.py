"""An agent with the real trainer: torch workers train, one dies, the other goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from resihp_agent.settings import AgentSettings
from resihp_bus import MemoryBroker, MemoryBus
from resihp_messages import (
    BatchConfig,
    JobSpec,
    ModelConfig,
    ParallelConfig,
    TimeoutConfig,
    ack,
    event,
)
from resihp_messages.report import IterationReport
from resihp_plan.plan import ParallelPlan, ReplicaPlan, StagePlan
from support.agents import JOB, Hand, agent_settings, running_agent
from support.waiting import wait_for

SPEC = JobSpec(
    name=JOB,
    iterations=200,
    dtype="float64",
    model=ModelConfig(num_layers=2, hidden=32, num_heads=2, num_kv_heads=2, ffn_hidden=64),
    parallel=ParallelConfig(tp=1, pp=1, dp=2),
    batch=BatchConfig(micro_batches=2, tokens_per_micro_batch=64),
    timeouts=TimeoutConfig(stall_s=5.0, node_s=10.0),
)


def plan(epoch: int, *micro_batches: int) -> ParallelPlan:
    """Replica r on rank r."""
    return ParallelPlan(
        epoch, tuple(ReplicaPlan((StagePlan(0, 2, (rank,), (1,)),), num) for rank, num in enumerate(micro_batches))
    )


async def test_a_torch_worker_dies_and_the_other_finishes_the_job(tmp_path: Path) -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker, "test")
    await bus.connect()
    hand = Hand(bus)
    await hand.start()
    real = AgentSettings.model_fields["zygote_command"].default
    async with running_agent(agent_settings(tmp_path, zygote_command=real), MemoryBus(broker, "agent-n0")) as agent:
        hand.store_address = agent.identity.store_address
        await hand.start_workers(SPEC, (0, 1))
        started = await hand.first(ack.WorkersStarted, 60.0)
        await hand.apply(plan(1, 1, 1), "initial")
        await hand.first(ack.IterationResumed, 60.0)
        await wait_for(lambda: len(hand.all(IterationReport)) >= 3, 60.0)
        os.kill(started.pids[1], signal.SIGKILL)
        exited = await hand.first(event.WorkerExited, 20.0)
        assert (exited.rank, exited.exit_code) == (1, -signal.SIGKILL)
        name = await hand.apply(plan(2, 2), "recovery", dead=(1,), base=(plan(1, 1, 1),))
        applied = await hand.first(ack.PlanApplied, 60.0, reconfiguration_id=name)
        resumed = await hand.first(ack.IterationResumed, 60.0, reconfiguration_id=name)
        assert applied.digests_equal
        assert resumed.iteration == applied.committed + 1
        finished = await hand.first(ack.WorkerFinished, 100.0)
        assert (finished.rank, finished.committed) == (0, SPEC.iterations)
        assert finished.samples_once == finished.samples_expected
        await wait_for(lambda: agent.supervisor.num_workers == 0)
        await agent.supervisor.settle()
        assert len(hand.all(event.WorkerExited)) == 1
        reports = hand.all(IterationReport)
        assert sorted({report.iteration for report in reports}) == list(range(1, SPEC.iterations + 1))
        # The victim may have died between its last commits and its reports of them, which a thread sends.
        together = [report.iteration for report in reports if report.ranks == (0, 1)]
        assert together == list(range(1, len(together) + 1))
        assert 3 <= len(together) <= applied.committed
        assert {report.ranks for report in reports} == {(0, 1), (0,)}
    await bus.close()
