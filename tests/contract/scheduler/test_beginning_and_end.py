"""Losses before the first plan runs, and after the last iteration is committed."""

from __future__ import annotations

from resihp_messages import command
from resihp_plan import ParallelPlan
from resihp_store import DeviceState, JobState
from support.scheduler_rig import Rig
from support.scripted_agent import declare, small_spec
from support.waiting import wait_for


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
