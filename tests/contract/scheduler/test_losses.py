"""Losses: one incident per fault, second deaths, nodes, state that nobody holds, broken links."""

from __future__ import annotations

from resihp_messages import command, event
from resihp_plan import ParallelPlan
from resihp_store import DeviceState, JobState, NodeState, queries
from support.scheduler_rig import Rig
from support.scripted_agent import declare, small_spec
from support.waiting import wait_for


async def test_verdicts_about_the_same_device_are_one_incident(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running()
        verdict = await declare(rig.bus, [3], node="a")
        await rig.applied(2)
        await declare(rig.bus, [3], node="a", message_id=verdict.message_id)  # the same message
        await declare(rig.bus, [3], node="a", kind=event.WorkerFrozen)  # another one about the same device
        last = await declare(rig.bus, [99], node="a")  # a device that never was
        await rig.logged(last.message_id)
        assert len(await rig.incidents()) == 1
        assert len(await rig.changes()) == 2
        assert len(a.plans) == 2
        assert [d.rank for d in (await rig.devices()).values() if d.state is DeviceState.LOST] == [3]


async def test_second_death_during_a_repair_supersedes_it(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        a.installs = b.installs = False
        first = await declare(rig.bus, [3], node="a", detect_s=0.2)
        await wait_for(lambda: len(a.plans) == 2 and len(b.plans) == 2, 10)
        a.installs = b.installs = True
        await declare(rig.bus, [6], node="b", epoch=2, detect_s=0.01)
        change = await rig.applied(3)
        old = await rig.change(2, "superseded")
        assert change.id in old.outcome
        last = a.plans[-1]
        assert last.dead_ranks == (3, 6)
        assert [p["epoch"] for p in last.base_plans] == [1, 2]  # nobody knows whether epoch 2 was installed
        assert not {3, 6} & set(ParallelPlan.from_dict(last.plan).world)
        assert change.phases_s["detect"] == 0.2  # the outage began with the first fault
        incidents = await rig.incidents()
        assert [i.ranks for i in incidents] == [(3,), (6,)]
        assert {i.correlation_id for i in incidents} == {first.message_id}
        assert all(i.closed_at is not None for i in incidents)
        (told,) = await rig.heard(event.ReconfigurationSuperseded)
        assert isinstance(told.body, event.ReconfigurationSuperseded)
        assert told.body.by_reconfiguration_id == change.id


async def test_lost_node_and_its_return(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running(rejoin="manual")
        await b.crash()
        await declare(rig.bus, [4, 5, 6, 7], node="b", kind=event.NodeLost)
        await rig.applied(2)
        assert ParallelPlan.from_dict(a.plans[-1].plan).world == (0, 1, 2, 3)
        assert len(b.plans) == 1  # nothing is sent to a node without living ranks

        async def is_lost() -> bool:  # written after the plan that follows from it
            async with rig.store.read() as connection:
                states = {n.node: n.state for n in await queries.nodes(connection)}
            return states == {"a": NodeState.UP, "b": NodeState.LOST}

        await wait_for(is_lost, 10)
        await rig.add_agents("b")  # a new incarnation
        await rig.submit(small_spec(name="other", parallel={"tp": 2, "pp": 2, "dp": 1}))
        await rig.applied(1, job="other")
        assert {d.node for d in (await rig.devices("other")).values()} == {"b"}
        old = {"kind": event.NodeLost, "node": "b", "incarnation": b.incarnation}  # late, about the old start
        await declare(rig.bus, [4, 5, 6, 7], **old)
        await declare(rig.bus, [], job="_fleet", **old)
        await declare(rig.bus, range(4), job="other", **old)
        marker = await declare(rig.bus, [77], node="b")
        await rig.logged(marker.message_id)
        async with rig.store.read() as connection:
            states = {n.node: n.state for n in await queries.nodes(connection)}
        assert states["b"] is NodeState.UP
        assert await rig.incidents("other") == ()


async def test_lost_node_of_the_fleet_concerns_every_job_there(rig: Rig) -> None:
    """Also jobs of which the detector knows nothing yet: their workers were about to start."""
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.known("a", "b")
        await rig.running(parallel={"tp": 2, "pp": 1, "dp": 2})
        b.starts = False
        await rig.submit(small_spec(name="other", parallel={"tp": 2, "pp": 1, "dp": 2}))
        await wait_for(lambda: "other" in b.ranks, 10)
        await declare(rig.bus, [], node="b", job="_fleet", kind=event.NodeLost, incarnation=b.incarnation)
        await rig.applied(2)
        await rig.applied(1, job="other")
        assert {d.node for d in (await rig.devices()).values() if d.state is DeviceState.HEALTHY} == {"a"}
        assert ParallelPlan.from_dict(a.plans[-1].plan).world == (0, 1)
        assert [len(await rig.incidents(name)) for name in ("demo", "other")] == [1, 1]


async def test_node_that_leaves_in_order(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        await b.say(event.NodeLeft(node="b"), job="_fleet", detail="NodeLeft")
        await rig.applied(2)
        assert ParallelPlan.from_dict(a.plans[-1].plan).world == (0, 1, 2, 3)
        (incident,) = await rig.incidents()
        assert incident.kind == "node_lost"


async def test_state_that_only_copies_hold_is_planned_for(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        a.installs = b.installs = False
        await declare(rig.bus, [2, 3, 6, 7], node="a", kind=event.NodeLost)  # the second stage of both replicas
        await wait_for(lambda: len(a.plans) == 2 and len(b.plans) == 2, 10)
        for agent in (a, b):
            envelope = agent.commands(command.ApplyPlan)[-1]
            await agent.install(envelope, lost_iterations=4, state_source="snapshot")
            await agent.resume(envelope)
        change = await rig.applied(2)
        assert (change.lost_iterations, change.state_source) == (4, "snapshot")
        assert "no live holder: all ranks go back to the newest snapshot or checkpoint" in change.reason
        told = [e.body for e in await rig.heard(event.ReconfigurationApplied)]
        assert [(b.lost_iterations, b.state_source) for b in told] == [(4, "snapshot")]


async def test_state_that_nobody_holds_fails_the_job_with_a_reason(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running(snapshots={"every": 0})
        # ranks 2, 3 (replica 0) and 6, 7 (replica 1) are the second stage
        await declare(rig.bus, [2, 3], node="a", kind=event.NodeLost)
        await rig.applied(2)
        world = ParallelPlan.from_dict(a.plans[-1].plan)
        holders = [r for rep in world.replicas for r in rep.stages[-1].ranks]
        await declare(rig.bus, [*holders, 6, 7], node="b", epoch=2)
        job = await rig.state(JobState.FAILED)
        assert "no_state_holder" in job.reason
        assert "layers" in job.reason
        await wait_for(lambda: a.commands(command.StopJob) or b.commands(command.StopJob), 10)
        (failed,) = await rig.heard(event.JobFailed)
        assert isinstance(failed.body, event.JobFailed)
        assert failed.body.reason == job.reason
        assert len(await rig.incidents()) == 2  # kept


async def test_everybody_lost(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running()
        await declare(rig.bus, range(8), node="a", kind=event.NodeLost)
        job = await rig.state(JobState.FAILED)
        assert "no device is left" in job.reason


async def test_broken_link_forms_the_groups_anew(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running()
        await declare(rig.bus, [], node="a", kind=event.LinkLost, epoch=1)
        change = await rig.applied(2)
        old, new = a.plans
        assert ParallelPlan.from_dict(new.plan) == ParallelPlan.from_dict(old.plan).with_epoch(2)
        assert change.difference == "same layout"
        marker = await declare(rig.bus, [], node="a", kind=event.LinkLost, epoch=1)  # of the past epoch
        await rig.logged(marker.message_id)
        assert len(await rig.changes()) == 2


async def test_a_link_that_stays_broken_ends_the_job(rig: Rig) -> None:
    async with rig.scheduler(max_attempts=2):
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        a.installs = b.installs = False
        for epoch in (1, 2):
            await declare(rig.bus, [], node="a", kind=event.LinkLost, epoch=epoch)
            await wait_for(lambda epoch=epoch: len(a.plans) == epoch + 1, 10)
        await declare(rig.bus, [], node="a", kind=event.LinkLost, epoch=3)
        job = await rig.state(JobState.FAILED)
        assert "2 tries" in job.reason
