"""Two nodes and a detector as processes: one node's death reaches the other's workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from resihp_bus import JetStreamBus, LocalNats
from resihp_messages import ack, event
from resihp_messages.report import NodeBeat
from support.agents import JOB, Hand, agent_process, data_parallel_plan, job_spec
from support.processes import running
from support.waiting import wait_for


@pytest.mark.parametrize("returns", [False, True])
async def test_the_death_of_a_node_aborts_the_workers_of_the_other(
    nats_bus: JetStreamBus, nats_server: LocalNats, tmp_path: Path, returns: bool
) -> None:
    """By silence, or sooner because its agent comes back as another process."""
    here, there = Hand(nats_bus, node="n0"), Hand(nats_bus, node="n1")
    await here.start()
    detector = running(
        "resihp_detector", tmp_path / "d", RESIHP_BUS_URL=nats_server.url, RESIHP_DETECTOR_NODE_S=60 if returns else 1.5
    )
    with (
        detector as service,
        agent_process(nats_server.url, tmp_path / "n0", node="n0"),
        agent_process(nats_server.url, tmp_path / "n1", node="n1") as doomed,
    ):
        await service.ready()
        await wait_for(lambda: len(here.all(event.NodeJoined)) == 2, 20.0)
        await here.start_workers(job_spec(stall_s=5.0), (0, 1))
        await there.start_workers(job_spec(stall_s=5.0), (2, 3))
        await wait_for(lambda: len(here.all(ack.WorkersStarted)) == 2, 20.0)
        plan = data_parallel_plan(1, (0, 1, 2, 3))
        await here.apply(plan, "initial")
        await there.apply(plan, "initial")
        await wait_for(lambda: len(here.all(ack.IterationResumed)) == 2, 20.0)
        await wait_for(lambda: any(len(b.workers) == 2 for b in here.all(NodeBeat) if b.node == "n1"))
        doomed.kill()
        if returns:
            with agent_process(nats_server.url, tmp_path / "n1", node="n1"):
                await _survivors_wait(here)
        else:
            await _survivors_wait(here)
        lost = [body for body in here.all(event.NodeLost) if body.verdict.ranks]
        assert [(body.verdict.node, body.verdict.ranks) for body in lost] == [("n1", (2, 3))]
        assert lost[0].evidence["cause"] == ("new incarnation" if returns else "silence")
        name = await here.apply(data_parallel_plan(2, (0, 1)), "recovery", dead=(2, 3))
        assert (await here.first(ack.IterationResumed, reconfiguration_id=name)).ranks == (0, 1)
        assert not here.all(event.WorkerExited)
        assert not here.all(event.LinkLost)


async def _survivors_wait(hand: Hand) -> None:
    await hand.first(event.NodeLost, 20.0)

    def waiting() -> bool:
        beats = [beat for beat in hand.all(NodeBeat) if beat.node == "n0"]
        return [worker.state for worker in beats[-1].workers if worker.job == JOB] == ["waiting", "waiting"]

    await wait_for(waiting)
