"""Replicas that differ: back to where they agreed, once, and the name of the damaged one when it is known."""

from __future__ import annotations

from typing import Any

from resihp_messages import command, event
from resihp_messages.request import RequestMode
from resihp_plan import ParallelPlan
from support.scheduler_rig import Rig
from support.scripted_agent import ScriptedAgent, ask, declare
from support.waiting import wait_for

PAIR = (2, 6)


async def diverge(rig: Rig, agreed: int | None, epoch: int = 1, ranks: tuple[int, ...] = PAIR) -> str:
    """What the detector says; returns its message id."""
    evidence: dict[str, Any] = {"agreed_iteration": agreed, "is_majority": False}
    said = await declare(rig.bus, ranks, node="a", kind=event.StateDiverged, epoch=epoch, **evidence)
    await rig.logged(said.message_id)
    return said.message_id


async def diverged(rig: Rig) -> tuple[ScriptedAgent, ScriptedAgent]:
    """A running job whose replicas differ since iteration 50; its agents have not installed what follows yet."""
    a, b = await rig.add_agents("a", "b")
    await rig.running()
    a.installs = b.installs = False
    await diverge(rig, 50)
    return a, b


async def go_back(rig: Rig, epoch: int, *, lost: int = 7, source: str = "snapshot") -> None:
    """All agents install the newest plan from an older state."""
    for agent in rig.agents.values():
        await wait_for(lambda agent=agent: agent.plans and agent.plans[-1].plan["epoch"] == epoch, 10)
        envelope = agent.commands(command.ApplyPlan)[-1]
        await agent.install(envelope, lost_iterations=lost, state_source=source)
        await agent.resume(envelope)


async def test_the_same_layout_goes_back_and_the_incident_gets_the_name_of_the_damaged(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await diverged(rig)
        await diverge(rig, 50, ranks=(3, 7))  # another bucket of the same fault
        await go_back(rig, 2)
        change = await rig.applied(2)
        assert (change.mode, change.difference, change.lost_iterations) == ("recovery", "same layout", 7)
        old, new = a.plans
        assert ParallelPlan.from_dict(new.plan) == ParallelPlan.from_dict(old.plan).with_epoch(2)
        assert (old.back_to, new.back_to, b.plans[-1].back_to) == (None, 50, 50)
        (incident,) = await rig.incidents()
        assert (incident.kind, incident.ranks) == ("state_diverged", PAIR)
        assert incident.resolution == f"repaired by {change.id}: 7 iterations redone from a snapshot"
        said = await declare(rig.bus, [6], node="b", kind=event.StateCorrupted, epoch=2, distances={"bucket/2-6": {}})
        await rig.logged(said.message_id)
        (incident,) = await rig.incidents()
        assert incident.ranks == (6,)
        assert incident.evidence["ranks"] == [2, 6]
        assert incident.evidence["agreed_iteration"] == 50
        assert incident.resolution.endswith("; rank 6 held the damaged state")


async def test_a_death_on_the_way_back_does_not_stop_the_return(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await diverged(rig)
        await wait_for(lambda: len(a.plans) == 2 and len(b.plans) == 2, 10)
        await declare(rig.bus, [3], node="a", epoch=2)
        await wait_for(lambda: len(a.plans) == 3 and len(b.plans) == 3, 10)
        assert (a.plans[-1].back_to, b.plans[-1].back_to) == (50, 50)
        assert a.plans[-1].dead_ranks == (3,)
        await go_back(rig, 3)
        await rig.applied(3)
        assert {i.resolution.split(":")[-1] for i in await rig.incidents() if i.kind == "state_diverged"} == {
            " 7 iterations redone from a snapshot"
        }
        a.installs = b.installs = True
        await declare(rig.bus, [5], node="b", epoch=3)  # a later death goes on from where the job is
        await rig.applied(4)
        assert a.plans[-1].back_to is None


async def test_without_a_copy_that_is_old_enough_it_says_so(rig: Rig) -> None:
    async with rig.scheduler():
        await diverged(rig)
        await go_back(rig, 2, lost=0, source="live")
        change = await rig.applied(2)
        (incident,) = await rig.incidents()
        assert incident.resolution == f"not repaired by {change.id}: no copy of the state is old enough"


async def test_what_is_only_reported(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running()
        await diverge(rig, None)
        assert (await ask(rig.bus, RequestMode(mode="advise"), job="demo")).accepted
        await diverge(rig, 100)
        assert (await ask(rig.bus, RequestMode(mode="act"), job="demo")).accepted
        await diverge(rig, 100)
        await rig.applied(2)
        await diverge(rig, 100, epoch=2)  # again from the same state: going back once more changes nothing
        await diverge(rig, 150, epoch=2)
        change = await rig.applied(3)
        said = [i.resolution for i in await rig.incidents()]
        assert said[0] == "only reported: they were never seen to agree"
        assert said[1] == "only reported: the job's mode is advise"
        assert said[2].startswith("not repaired by")  # the scripted agents have no copies
        assert said[3] == "only reported: they still differ after a return to where they agreed, iteration 100"
        assert [c.new_epoch for c in await rig.changes()] == [1, 2, 3]
        assert "not newer than iteration 150" in change.reason


async def test_a_job_without_copies_only_reports(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(snapshots={"every": 0})
        await diverge(rig, 50)
        (incident,) = await rig.incidents()
        assert incident.resolution == "only reported: the job keeps no copies of its state"
        assert incident.closed_at is not None
