"""A job's life as the scheduler sees it: start, loss, recovery, planned change, end."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from resihp_messages import Kind, ack, command, event
from resihp_messages.request import RequestFault, RequestPlan, RequestStop, SubmitJob
from resihp_plan import ParallelPlan
from resihp_store import DeviceState, JobState, NodeState, queries
from support.scheduler_rig import Rig
from support.scripted_agent import ask, declare, small_spec
from support.waiting import wait_for


async def test_start_loss_recovery_end(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        job = await rig.running()
        assert (job.state, job.epoch, job.iterations) == (JobState.RUNNING, 1, 40)

        devices = await rig.devices()
        assert {d.node for r, d in devices.items() if r < 4} == {"a"}  # a replica stays on one node
        assert {d.node for r, d in devices.items() if r >= 4} == {"b"}
        assert [d.pid for d in devices.values()] == [10_000 + r for r in range(8)]
        first = a.plans[0]
        assert (first.mode, first.base_plans, first.dead_ranks) == ("initial", (), ())
        assert first.digest == b.plans[0].digest == ParallelPlan.from_dict(first.plan).digest

        await declare(rig.bus, [3], node="a")
        change = await rig.applied(2)
        second = a.plans[1]
        plan = ParallelPlan.from_dict(second.plan)
        assert (second.mode, second.dead_ranks, plan.epoch) == ("recovery", (3,), 2)
        assert second.base_plans == (first.plan,)
        assert 3 not in plan.world
        assert plan.world == (0, 1, 2, 4, 5, 6, 7)
        assert b.plans[1] == second.model_copy(update={"node": "b", "agent_incarnation": b.incarnation})

        assert change.phases_s == pytest.approx(
            {
                "detect": 0.004,
                "plan": 0.003,
                "abort": 0.01,
                "rebuild": 0.027,
                "move": 0.005,
                "redo": 0.05,
                "total": 0.104,
            }
        )
        assert change.bytes_moved == 700
        assert change.proof == {
            "layers_complete": True,
            "samples_once": True,
            "digests_equal": True,
            "plan_digest_equal": True,
        }
        assert change.alternatives
        assert change.predicted_tokens_per_s is not None
        assert change.bound_tokens_per_s is not None
        assert change.predicted_tokens_per_s <= change.bound_tokens_per_s * 1.2
        (incident,) = await rig.incidents()
        assert (incident.kind, incident.ranks, incident.id) == ("worker_lost", (3,), change.incident_id)
        assert incident.closed_at is not None
        assert (await rig.devices())[3].state is DeviceState.LOST
        assert (await rig.job()).epoch == 2

        for agent in (a, b):
            await agent.finish("demo", [r for r in agent.ranks["demo"] if r != 3], epoch=2)
        done = await rig.state(JobState.FINISHED)
        assert (done.committed, done.samples_expected, done.samples_once, done.final_loss) == (40, 640, 640, 1.25)
        await rig.heard(event.JobFinished)
    decided = [n for n in rig.names() if n not in ("NodeJoined",)]
    assert decided == [
        "JobSubmitted",
        "JobStarted",
        "WorkerLost",
        "ReconfigurationPlanned",
        "ReconfigurationApplied",
        "JobFinished",
    ]
    async with rig.store.read() as connection:
        log = [e.name for e in await queries.events(connection) if e.name != "NodeJoined"]
    assert log == decided
    assert await rig.store.unsent(10) == ()


async def test_one_correlation_id_runs_through_a_repair(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running()
        verdict = await declare(rig.bus, [3], node="a")
        await rig.applied(2)
        (incident,) = await rig.incidents()
        assert incident.correlation_id == verdict.message_id
        applied = await rig.heard(event.ReconfigurationApplied)
        planned = await rig.heard(event.ReconfigurationPlanned)
        order = a.commands(command.ApplyPlan)[-1]
        assert {e.correlation_id for e in (*applied, *planned, order)} == {verdict.message_id}


async def test_verdicts_about_the_same_device_are_one_incident(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running()
        verdict = await declare(rig.bus, [3], node="a")
        await rig.applied(2)
        await declare(rig.bus, [3], node="a", message_id=verdict.message_id)  # the same message
        await declare(rig.bus, [3], node="a", kind=event.WorkerFrozen)  # another one about the same device
        last = await declare(rig.bus, [99], node="a")  # a device that never was
        await wait_for(lambda: _logged(rig, last.message_id), 10)
        assert len(await rig.incidents()) == 1
        assert len(await rig.changes()) == 2
        assert len(a.plans) == 2
        assert [d.rank for d in (await rig.devices()).values() if d.state is DeviceState.LOST] == [3]


async def _logged(rig: Rig, message_id: str) -> bool:
    async with rig.store.read() as connection:
        return message_id in [e.message_id for e in await queries.events(connection)]


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
        async with rig.store.read() as connection:
            states = {n.node: n.state for n in await queries.nodes(connection)}
        assert states == {"a": NodeState.UP, "b": NodeState.LOST}
        await rig.add_agents("b")  # a new incarnation
        await rig.submit(small_spec(name="other", parallel={"tp": 2, "pp": 2, "dp": 1}))
        await rig.applied(1, job="other")
        assert {d.node for d in (await rig.devices("other")).values()} == {"b"}
        old = {"kind": event.NodeLost, "node": "b", "incarnation": b.incarnation}  # late, about the old start
        await declare(rig.bus, [4, 5, 6, 7], **old)
        await declare(rig.bus, [], job="_fleet", **old)
        await declare(rig.bus, range(4), job="other", **old)
        marker = await declare(rig.bus, [77], node="b")
        await wait_for(lambda: _logged(rig, marker.message_id), 10)
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


async def test_state_that_nobody_holds_fails_the_job_with_a_reason(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
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
        await wait_for(lambda: _logged(rig, marker.message_id), 10)
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


async def test_planned_change(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        wanted = ParallelPlan.from_dict(a.plans[0].plan).to_dict()
        wanted["replicas"][0]["num_micro_batches"], wanted["replicas"][1]["num_micro_batches"] = 5, 3
        wanted.pop("epoch")
        a.installs = b.installs = False
        reply = await ask(rig.bus, RequestPlan(plan=wanted, reason="try 5+3"), job="demo")
        assert reply.accepted
        assert reply.reconfiguration_id is not None
        await wait_for(lambda: len(b.plans) == 2, 10)
        busy = await ask(rig.bus, RequestPlan(plan=wanted), job="demo")
        assert not busy.accepted
        assert "under way" in busy.reason
        for agent in (a, b):
            await agent.install(agent.commands(command.ApplyPlan)[-1], plan_s=0.0)
            await agent.resume(agent.commands(command.ApplyPlan)[-1])
        change = await rig.applied(2)
        assert (change.id, change.mode, change.reason) == (reply.reconfiguration_id, "planned", "try 5+3")
        assert change.difference == "micro-batches 4+4 -> 5+3"
        assert change.phases_s["detect"] == 0.0
        assert a.plans[1].mode == "planned"
        assert await rig.incidents() == ()


async def test_death_while_a_planned_change_is_pending(rig: Rig) -> None:
    """The workers forget the held plan; the recovery starts from what the job really ran, but knows of both layouts."""
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        wanted = ParallelPlan.from_dict(a.plans[0].plan).to_dict()
        wanted["replicas"][0]["num_micro_batches"], wanted["replicas"][1]["num_micro_batches"] = 7, 1
        a.installs = b.installs = False
        assert (await ask(rig.bus, RequestPlan(plan=wanted), job="demo")).accepted
        await wait_for(lambda: len(a.plans) == 2 and len(b.plans) == 2, 10)
        a.installs = b.installs = True
        await declare(rig.bus, [3], node="a")
        change = await rig.applied(3)
        assert change.old_epoch == 1
        assert [p["epoch"] for p in a.plans[-1].base_plans] == [1, 2]
        await rig.change(2, "superseded")


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda p: p["replicas"][0].update(num_micro_batches=9), "micro-batches"),
        (lambda p: p["replicas"][0]["stages"][0].update(ranks=[0, 0]), "rank 0"),
        (lambda p: p["replicas"][0]["stages"][0].update(layers=[0, 3]), "layers"),
        (lambda p: p["replicas"][0]["stages"][0].update(ranks=[0, 42]), "42"),
        (lambda p: p.update(replicas="nonsense"), "not a plan"),
    ],
)
async def test_invalid_plans_are_refused_with_the_rule(rig: Rig, edit: object, rule: str) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running()
        wanted = ParallelPlan.from_dict(a.plans[0].plan).to_dict()
        edit(wanted)  # type: ignore[operator]
        reply = await ask(rig.bus, RequestPlan(plan=wanted), job="demo")
        assert not reply.accepted
        assert rule in reply.reason
        assert len(await rig.changes()) == 1


async def test_devices_that_a_requested_plan_leaves_out_stand_by(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running()
        wanted = ParallelPlan.from_dict(a.plans[0].plan).to_dict()
        del wanted["replicas"][1]
        wanted["replicas"][0]["num_micro_batches"] = 8
        assert (await ask(rig.bus, RequestPlan(plan=wanted), job="demo")).accepted
        await rig.applied(2)
        states = {r: d.state for r, d in (await rig.devices()).items()}
        assert [r for r, s in states.items() if s is DeviceState.STANDBY] == [4, 5, 6, 7]
        assert [r for r, s in states.items() if s is DeviceState.HEALTHY] == [0, 1, 2, 3]


async def test_refused_planned_change_is_dropped(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        a.refuses = "worker says no"
        b.installs = False
        wanted = ParallelPlan.from_dict(a.plans[0].plan).to_dict()
        assert (await ask(rig.bus, RequestPlan(plan=wanted), job="demo")).accepted
        change = await rig.change(2, "rejected")
        assert "worker says no" in change.outcome
        (told,) = await rig.heard(event.ReconfigurationRejected)
        assert isinstance(told.body, event.ReconfigurationRejected)
        assert (await rig.job()).state is JobState.RUNNING
        a.refuses, b.installs = "", True
        await declare(rig.bus, [3], node="a")
        await rig.applied(3)
        assert [p["epoch"] for p in a.plans[-1].base_plans] == [1]  # a refused plan never took effect


async def test_refused_recovery_is_tried_again_then_given_up(rig: Rig) -> None:
    async with rig.scheduler(max_attempts=3):
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        a.refuses, b.installs = "no", False
        await declare(rig.bus, [3], node="a")
        job = await rig.state(JobState.FAILED)
        assert "refused 3 times" in job.reason
        assert [c.status for c in await rig.changes()] == ["applied", "superseded", "superseded", "rejected"]
        assert [c.attempt for c in await rig.changes()] == [1, 1, 2, 3]


async def test_refused_once_then_accepted(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        a.refuses, b.installs = "no", False
        await declare(rig.bus, [3], node="a")
        await wait_for(lambda: len(b.plans) >= 2, 10)
        a.refuses, b.installs = "", True
        await wait_for(lambda: _any_applied(rig, 3), 10)
        assert (await rig.job()).state is JobState.RUNNING


async def _any_applied(rig: Rig, from_epoch: int) -> bool:
    return any(c.new_epoch >= from_epoch and c.status == "applied" for c in await rig.changes())


async def test_loss_while_the_job_starts(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b", starts=False)
        await rig.submit(small_spec())
        await wait_for(lambda: "demo" in a.ranks and "demo" in b.ranks, 10)
        await a.started("demo")
        await declare(rig.bus, [5], node="b", epoch=0)
        b.ranks["demo"] = tuple(r for r in b.ranks["demo"] if r != 5)
        await b.started("demo")
        change = await rig.applied(1)
        assert (change.mode, change.old_epoch) == ("initial", 0)
        plan = ParallelPlan.from_dict(a.plans[0].plan)
        assert plan.world == (0, 1, 2, 3, 4, 6, 7)
        assert a.plans[0].base_plans == ()


async def test_loss_before_the_initial_plan_is_installed(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b", installs=False)
        await rig.submit(small_spec())
        await wait_for(lambda: a.plans and b.plans, 10)
        a.installs = b.installs = True
        await declare(rig.bus, [0], node="a")
        change = await rig.applied(2)
        assert (change.mode, a.plans[-1].mode) == ("recovery", "recovery")
        assert [p["epoch"] for p in a.plans[-1].base_plans] == [1]
        await rig.change(1, "superseded")


async def test_loss_after_some_have_finished(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        await a.finish("demo", [0, 1, 2])
        await wait_for(lambda: _finished(rig, 3), 10)
        await declare(rig.bus, [3], node="a")
        await wait_for(lambda: b.commands(command.FinishJob), 10)
        assert len(await rig.changes()) == 1
        await b.finish("demo")
        job = await rig.state(JobState.FINISHED)
        assert job.samples_once == 640
        (incident,) = await rig.incidents()
        assert incident.closed_at is not None


async def _finished(rig: Rig, count: int) -> bool:
    states = [d.state for d in (await rig.devices()).values()]
    return states.count(DeviceState.FINISHED) == count


async def test_last_unfinished_rank_dies(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        await a.finish("demo")
        await b.finish("demo", [4, 5, 6])
        await wait_for(lambda: _finished(rig, 7), 10)
        await declare(rig.bus, [7], node="b")
        assert (await rig.state(JobState.FINISHED)).committed == 40


async def test_finish_of_an_older_epoch_overtakes_a_recovery(rig: Rig) -> None:
    """Rank 3 died after the last barrier: the verdict came first, then the others' good-byes of the old epoch."""
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        a.installs = b.installs = False
        await declare(rig.bus, [3], node="a")
        await wait_for(lambda: len(a.plans) == 2 and len(b.plans) == 2, 10)
        await a.finish("demo", [0, 1, 2], epoch=1)
        await rig.change(2, "rejected")
        await wait_for(lambda: b.commands(command.FinishJob), 10)
        await b.finish("demo", epoch=1)
        await rig.state(JobState.FINISHED)


async def test_worker_that_fails_by_its_own_fault_stops_the_job(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        await b.say(ack.WorkerFailed(node="b", rank=5, error="loss is not finite"), job="demo")
        job = await rig.state(JobState.FAILED)
        assert job.reason == "rank 5 failed: loss is not finite"
        await wait_for(lambda: a.commands(command.StopJob) and b.commands(command.StopJob), 10)


async def test_requests(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        spec = small_spec()
        first = await ask(rig.bus, SubmitJob(spec=spec), job="demo", message_id="q1")
        again = await ask(rig.bus, SubmitJob(spec=spec), job="demo", message_id="q1")  # answer was lost
        assert first.accepted
        assert again.accepted
        twice = await ask(rig.bus, SubmitJob(spec=spec), job="demo")
        assert "already" in twice.reason
        mixed = await ask(rig.bus, SubmitJob(spec=spec), job="other")
        assert not mixed.accepted
        await rig.applied(1)
        assert (await ask(rig.bus, RequestFault(rank=2, fault="freeze"), job="demo")).accepted
        await wait_for(lambda: a.commands(command.InflictFault), 10)
        order = a.commands(command.InflictFault)[0].body
        assert isinstance(order, command.InflictFault)
        assert (order.rank, order.fault) == (2, "freeze")
        assert "not alive" in (await ask(rig.bus, RequestFault(rank=9, fault="kill"), job="demo")).reason
        assert "no job" in (await ask(rig.bus, RequestFault(rank=9, fault="kill"), job="nobody")).reason
        assert (await ask(rig.bus, RequestStop(reason="the test"), job="demo")).accepted
        job = await rig.state(JobState.STOPPED)
        assert "the test" in job.reason
        assert "stopped" in (await ask(rig.bus, RequestStop(), job="demo")).reason
        assert "not running" in (await ask(rig.bus, RequestPlan(plan={}), job="demo")).reason
        await wait_for(lambda: a.commands(command.StopJob), 10)


async def test_jobs_wait_for_slots(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.submit(small_spec(name="first"))
        assert (await rig.job("first")).state is JobState.SUBMITTED  # no node yet
        a, b = await rig.add_agents("a", "b")
        await rig.applied(1, job="first")
        await rig.submit(small_spec(name="second"))
        await rig.submit(small_spec(name="third", parallel={"tp": 2, "pp": 1, "dp": 1}))
        await rig.submit(small_spec(name="giant", parallel={"tp": 4, "pp": 4, "dp": 1}))
        await ask(rig.bus, RequestFault(rank=0, fault="kill"), job="first")
        await declare(rig.bus, [0], node="a", job="first")
        await rig.applied(2, job="first")
        assert (await rig.job("third")).state is JobState.SUBMITTED  # a lost device frees no slot
        for agent in (a, b):
            await agent.finish("first", [r for r in agent.ranks["first"] if r], epoch=2)
        await rig.applied(1, job="second")
        assert (await rig.job("third")).state is JobState.SUBMITTED  # the older one goes first
        for agent in (a, b):
            await agent.finish("second")
        await rig.applied(1, job="third")
        assert (await rig.job("giant")).state is JobState.SUBMITTED  # holds nobody back: it never fits


async def test_iteration_summaries_and_achieved_throughput(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        for iteration in range(1, 9):
            await a.report("demo", iteration, step_s=0.25)
            await b.report("demo", iteration, step_s=0.5)

        async def complete() -> bool:
            async with rig.store.read() as connection:
                rows = await queries.iterations(connection, "demo")
            return len(rows) == 8 and all(row.step_s == 0.5 for row in rows)

        await wait_for(complete, 10)
        async with rig.store.read() as connection:
            rows = await queries.iterations(connection, "demo")
        assert (rows[0].tokens, rows[0].samples_once, rows[0].loss, rows[0].rss_bytes) == (1024, 16, 5.0, 1007)

        async def measured() -> bool:
            return (await rig.changes())[0].achieved_tokens_per_s == 2048.0

        await wait_for(measured, 10)
        assert (await rig.job()).committed == 8


async def test_reports_survive_a_change_of_leader(rig: Rig) -> None:
    """Each summary is there once, whether its report came before, between or after two terms."""
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running()
        await _train(rig, range(1, 4))
        await wait_for(lambda: _committed(rig, 3), 20)
    await _train(rig, range(4, 7))
    async with rig.scheduler():
        await _train(rig, range(7, 10))
        await wait_for(lambda: _committed(rig, 9), 20)
        async with rig.store.read() as connection:
            rows = await queries.iterations(connection, "demo")
            position = await queries.cursor(connection, "reports")
    assert [row.iteration for row in rows] == list(range(1, 10))
    assert position == await rig.bus.last_sequence(Kind.REPORT) == 18


async def _train(rig: Rig, iterations: Iterable[int]) -> None:
    for iteration in iterations:
        for agent in rig.agents.values():
            await agent.report("demo", iteration)


async def _committed(rig: Rig, iterations: int) -> bool:
    async with rig.store.read() as connection:
        return await queries.cursor(connection, "reports") == 2 * iterations
