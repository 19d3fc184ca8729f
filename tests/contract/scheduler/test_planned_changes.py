"""Planned changes: what an operator asks for, what breaks a rule, what is refused."""

from __future__ import annotations

import pytest

from resihp_messages import command, event
from resihp_messages.placement import PackedPlacement, node_of
from resihp_messages.request import RequestPlan
from resihp_plan import ParallelPlan
from resihp_scheduler import changes
from resihp_store import DeviceState, JobState
from support.scheduler_rig import Rig
from support.scripted_agent import ask, declare
from support.waiting import wait_for


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


async def test_many_ranks_get_their_plans_in_few_bytes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node gets the whole plan, those in whose layouts state may be, and where everybody is."""
    monkeypatch.setattr(changes, "MANY_RANKS", 0)
    async with rig.scheduler():
        _, b = await rig.add_agents("a", "b")
        await rig.running()
        await declare(rig.bus, [3], node="a")
        await rig.applied(2)
        sent = b.plans[-1]
        assert set(sent.plan) == {"compact"}
        assert isinstance(sent.placement, PackedPlacement)
        plan = ParallelPlan.from_dict(sent.plan)
        assert (plan.digest, 3 in plan.world) == (sent.digest, False)
        assert ParallelPlan.from_dict(sent.base_plans[-1]).world == tuple(range(8))
        assert set(node_of(sent.placement)) == set(range(8))


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
