"""A job's life as the scheduler sees it: start, loss, recovery, end; requests."""

from __future__ import annotations

import pytest

from resihp_messages import ack, command, event
from resihp_messages.request import RequestFault, RequestPlan, RequestStop, SubmitJob
from resihp_plan import ParallelPlan
from resihp_store import DeviceState, JobState, queries
from support.scheduler_rig import Rig
from support.scripted_agent import ask, declare, small_spec
from support.waiting import wait_for


async def test_start_loss_recovery_end(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        job = await rig.running()
        assert (job.state, job.epoch, job.iterations) == (JobState.RUNNING, 1, 40)
        await rig.heard(event.JobStarted)  # it is said after it is written: before the verdict below, for the order

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
