"""Lost devices come back: they are started under their old numbers and taken in at a planned change."""

from __future__ import annotations

from resihp_messages import ack, command, event
from resihp_messages.placement import starts_of
from resihp_messages.request import RequestRestart
from resihp_plan import ParallelPlan
from resihp_store import DeviceState, JobState
from support.scheduler_rig import Rig
from support.scripted_agent import ScriptedAgent, ask, declare
from support.waiting import wait_for


def asked_starts(agent: ScriptedAgent) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(ranks, starts) of every start that the agent was asked for."""
    bodies = [e.body for e in agent.commands(command.StartWorkers)]
    return [(b.ranks, b.starts) for b in bodies if isinstance(b, command.StartWorkers)]


async def test_a_node_comes_back_with_all_its_ranks(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        await b.crash()
        await declare(rig.bus, range(4, 8), node="b", kind=event.NodeLost, incarnation=b.incarnation)
        await rig.applied(2)
        (again,) = await rig.add_agents("b")
        change = await rig.applied(3)
        assert change.mode == "planned"
        assert change.reason.startswith("ranks 4, 5, 6, 7 returned")
        assert asked_starts(again) == [((4, 5, 6, 7), (1, 1, 1, 1))]
        assert asked_starts(a) == [((0, 1, 2, 3), ())]  # whoever ran is left alone
        first, last = (ParallelPlan.from_dict(p.plan) for p in (a.plans[0], a.plans[-1]))
        assert last.replicas == first.replicas
        order = again.plans[0]
        assert [p.model_dump() for p in order.placement] == [
            {"node": "a", "ranks": (0, 1, 2, 3), "starts": ()},
            {"node": "b", "ranks": (4, 5, 6, 7), "starts": (1, 1, 1, 1)},
        ]
        assert order.dead_ranks == ()
        devices = await rig.devices()
        assert all(d.state is DeviceState.HEALTHY for d in devices.values())
        assert [d.start for d in devices.values()] == [0] * 4 + [1] * 4
        assert {devices[r].incarnation for r in range(4, 8)} == {again.incarnation}
        for agent in (a, again):
            await agent.finish("demo", epoch=3)
        await rig.state(JobState.FINISHED)


async def test_a_new_node_takes_the_place_of_a_lost_one(rig: Rig) -> None:
    async with rig.scheduler():
        _, b = await rig.add_agents("a", "b")
        await rig.running()
        await b.crash()
        await declare(rig.bus, range(4, 8), node="b", kind=event.NodeLost, incarnation=b.incarnation)
        await rig.applied(2)
        await rig.add_agents("c", num_slots=2)
        await rig.applied(3)
        assert {r for r, d in (await rig.devices()).items() if d.node == "c"} == {4, 5}  # as far as there is room
        await rig.add_agents("d", num_slots=2)
        await rig.applied(4)
        assert {d.node for d in (await rig.devices()).values()} == {"a", "c", "d"}


async def test_an_operator_asks_for_a_lost_rank(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running()
        refused = await ask(rig.bus, RequestRestart(rank=3), job="demo")
        assert "rank 3 is healthy, not lost" in refused.reason
        await declare(rig.bus, [3], node="a")
        await rig.applied(2)
        assert len(asked_starts(a)) == 1  # its agent lives: nobody knows whether the device is any good
        assert (await ask(rig.bus, RequestRestart(rank=3), job="demo")).accepted
        await rig.applied(3)
        assert asked_starts(a)[1] == ((3,), (1,))
        assert (await rig.devices())[3].slot == 3
        late = await declare(rig.bus, [3], node="a", start=0, incarnation=a.incarnation)  # about the old process
        await declare(rig.bus, [3], node="a", start=1, incarnation=a.incarnation, epoch=3)
        assert (await rig.applied(4)).mode == "recovery"
        assert late.message_id not in {i.message_id for i in await rig.incidents()}
        assert len(await rig.incidents()) == 2


async def test_a_returning_rank_that_fails_harms_nobody(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        await declare(rig.bus, [3], node="a")
        await rig.applied(2)
        a.starts = False
        assert (await ask(rig.bus, RequestRestart(rank=3), job="demo")).accepted
        await wait_for(lambda: len(asked_starts(a)) == 2, rig.patience_s)
        await a.say(ack.WorkerFailed(node="a", rank=3, error="no such file"), job="demo")

        async def is_lost() -> bool:
            return (await rig.devices())[3].state is DeviceState.LOST

        await wait_for(is_lost, rig.patience_s)
        assert (await ask(rig.bus, RequestRestart(rank=3), job="demo")).accepted
        await wait_for(lambda: len(asked_starts(a)) == 3, rig.patience_s)
        await declare(rig.bus, [3], node="a", start=2, incarnation=a.incarnation)  # dies before it says hello
        await wait_for(is_lost, rig.patience_s)
        assert [c.new_epoch for c in await rig.changes()] == [1, 2]
        assert all(i.closed_at is not None for i in await rig.incidents())
        assert (await rig.job()).state is JobState.RUNNING
        assert (await ask(rig.bus, RequestRestart(rank=3), job="demo")).accepted
        await wait_for(lambda: len(asked_starts(a)) == 4, rig.patience_s)
        for agent in (a, b):  # the job ends while it starts
            await agent.finish("demo", [r for r in agent.ranks["demo"] if r != 3], epoch=2)
        await rig.state(JobState.FINISHED)
        await wait_for(lambda: a.commands(command.StopJob), rig.patience_s)


async def test_a_death_while_a_rank_is_taken_in(rig: Rig) -> None:
    """The planned change is given up for a recovery, which keeps the newcomer."""
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running()
        await declare(rig.bus, [3], node="a")
        await rig.applied(2)
        a.installs = b.installs = False
        assert (await ask(rig.bus, RequestRestart(rank=3), job="demo")).accepted
        await wait_for(lambda: len(a.plans) == 3 and len(b.plans) == 3, rig.patience_s)
        a.installs = b.installs = True
        await declare(rig.bus, [6], node="b", epoch=2)
        change = await rig.applied(4)
        assert change.mode == "recovery"
        plan = ParallelPlan.from_dict(a.plans[-1].plan)
        assert plan.world == (0, 1, 2, 3, 4, 5, 7)
        assert [r for r, start in starts_of(a.plans[-1].placement).items() if start] == [3]
