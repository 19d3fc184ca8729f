"""Jobs that somebody else launched: known, recorded, advised; nothing is started, stopped or planned for them."""

from __future__ import annotations

from typing import Any

from resihp_agent.attach.job import spec_of
from resihp_messages import JobSpec, ack, command, event
from resihp_messages.attach import AttachHello
from resihp_messages.report import IterationReport
from resihp_plan import ParallelPlan
from resihp_store import DeviceState, JobState
from support.scheduler_rig import Rig
from support.scripted_agent import ScriptedAgent, declare
from support.waiting import wait_for

WORLD = 4


def spec() -> JobSpec:
    return spec_of(
        AttachHello(job="mine", rank=0, world_size=WORLD, local_rank=0, local_world_size=2, axes={"pp": 2, "dp": 2})
    )


async def attach(agent: ScriptedAgent, ranks: tuple[int, ...], start: int = 0) -> command.WatchWorkers:
    """The agent says that ranks report to it; returns the scheduler's answer."""
    before = len(agent.commands(command.WatchWorkers))
    pids = tuple(1000 * (start + 1) + rank for rank in ranks)
    body = event.WorkersAttached(
        node=agent.node, ranks=ranks, pids=pids, start=start, spec=spec().model_dump(mode="json")
    )
    await agent.say(body, job="mine", detail="WorkersAttached", epoch=start + 1)
    await wait_for(lambda: len(agent.commands(command.WatchWorkers)) > before, 30.0, what="WatchWorkers")
    envelope = agent.commands(command.WatchWorkers)[-1]
    assert envelope.epoch == start + 1
    assert isinstance(envelope.body, command.WatchWorkers)
    return envelope.body


async def states(rig: Rig) -> dict[int, DeviceState]:
    return {rank: d.state for rank, d in (await rig.devices("mine")).items()}


def report(iteration: int, ranks: tuple[int, ...]) -> IterationReport:
    n = len(ranks)
    columns: dict[str, Any] = dict.fromkeys(
        ("step_s", "forward_s", "backward_s", "tp_wait_s", "pp_wait_s", "dp_wait_s"), (0.1,) * n
    )
    return IterationReport(
        node="a", iteration=iteration, ranks=ranks, **columns, tokens=(8,) * n, sum_sq_len=(64,) * n,
        rss_bytes=(1,) * n, loss=2.0, global_tokens=32, samples_expected=0, samples_once=0,
    )  # fmt: skip


async def test_two_nodes_make_one_job_and_get_the_same_plan(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        first, second = await attach(a, (0, 1)), await attach(b, (2, 3))
        assert (first.reconfiguration_id, first.digest) == (second.reconfiguration_id, second.digest)
        plan = ParallelPlan.from_dict(first.plan)
        assert [[s.ranks for s in r.stages] for r in plan.replicas] == [[(0,), (2,)], [(1,), (3,)]]
        job = await rig.state(JobState.RUNNING, "mine")
        assert (job.epoch, job.plan_digest) == (1, plan.digest)
        assert await states(rig) == dict.fromkeys(range(WORLD), DeviceState.HEALTHY)
        await a.say(report(1, (0, 1)), job="mine", epoch=1)

        async def counted() -> bool:
            return (await rig.job("mine")).committed == 1

        await wait_for(counted, 30.0, what="the iteration")
        assert not a.commands(command.StartWorkers)


async def test_a_loss_is_recorded_and_left_to_the_launcher(rig: Rig) -> None:
    async with rig.scheduler():
        (a,) = await rig.add_agents("a")
        await attach(a, (0, 1, 2, 3))
        verdict = await declare(rig.bus, [2], node="a", job="mine", incarnation=a.incarnation)
        await rig.logged(verdict.message_id)
        (incident,) = await rig.incidents("mine")
        assert (incident.kind, incident.ranks, incident.closed_at) == ("worker_lost", (2,), None)
        assert (await states(rig))[2] is DeviceState.LOST
        assert (await rig.job("mine")).state is JobState.RUNNING
        # the launcher starts everybody again
        again = await attach(a, (0, 1, 2, 3), start=1)
        assert ParallelPlan.from_dict(again.plan).epoch == 2
        assert (await states(rig))[2] is DeviceState.HEALTHY
        assert [i.resolution for i in await rig.incidents("mine")] == ["the rank reports again"]
        # and gives up
        await a.say(ack.WorkerFailed(node="a", rank=2, error="SIGKILL"), job="mine", epoch=2)
        job = await rig.state(JobState.FAILED, "mine")
        assert "SIGKILL" in job.reason
        assert not a.plans


async def test_a_frozen_rank_may_go_on(rig: Rig) -> None:
    async with rig.scheduler():
        (a,) = await rig.add_agents("a")
        await attach(a, (0, 1, 2, 3))
        await declare(rig.bus, [1], node="a", job="mine", kind=event.WorkerFrozen)

        async def frozen() -> bool:
            return (await states(rig))[1] is DeviceState.LOST

        await wait_for(frozen, 30.0, what="the verdict")
        resumed = event.WorkerResumed(node="a", rank=1, pid=1001, silent_s=3.0)
        envelope = await a.say(resumed, job="mine", detail="WorkerResumed", epoch=1)
        await rig.logged(envelope.message_id)
        assert (await states(rig))[1] is DeviceState.HEALTHY
        (incident,) = await rig.incidents("mine")
        assert incident.resolution == "it goes on after 3.0 s"


async def test_a_hang_and_a_slow_device_are_incidents_without_a_decision(rig: Rig) -> None:
    async with rig.scheduler():
        (a,) = await rig.add_agents("a")
        await attach(a, (0, 1, 2, 3))
        for kind in (event.JobHung, event.DeviceSlow):
            name: Any = "job_hung" if kind is event.JobHung else "device_slow"
            verdict = event.Verdict(fault=name, ranks=(3,), node="a", p=0.5, confidence=0.9)
            body = kind(evidence={"iteration": 9}, verdict=verdict, advice="look at rank 3")
            envelope = await a.say(body, job="mine", detail=kind.schema_name.partition(".")[0], epoch=1)
            await rig.logged(envelope.message_id)
        assert [(i.kind, i.ranks) for i in await rig.incidents("mine")] == [("job_hung", (3,)), ("device_slow", (3,))]
        assert not [e for e in rig.events if isinstance(e.body, event.DecisionMade)]


async def test_a_job_of_ours_keeps_its_name(rig: Rig) -> None:
    async with rig.scheduler():
        (a,) = await rig.add_agents("a")
        await attach(a, (0, 1, 2, 3))
        for rank in range(WORLD):
            done = ack.WorkerFinished(
                node="a", rank=rank, committed=5, samples_expected=0, samples_once=0, final_loss=1.5, peak_rss_bytes=9
            )
            await a.say(done, job="mine", epoch=1)
        job = await rig.state(JobState.FINISHED, "mine")
        assert (job.committed, job.final_loss) == (5, 1.5)
        body = event.WorkersAttached(node="a", ranks=(0,), pids=(7,), spec=spec().model_dump(mode="json"))
        late = await a.say(body, job="mine", detail="WorkersAttached", epoch=1)
        await rig.logged(late.message_id)
        assert (await rig.job("mine")).state is JobState.FINISHED
        assert len(a.commands(command.WatchWorkers)) == 1
