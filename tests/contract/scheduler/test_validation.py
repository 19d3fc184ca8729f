"""An operator suspects a device: every node gets the same order to probe; a strange rank is refused."""

from __future__ import annotations

from resihp_messages import command
from resihp_messages.request import RequestFault, RequestValidation
from support.scheduler_rig import Rig
from support.scripted_agent import ask
from support.waiting import wait_for


async def test_every_rank_of_the_plan_gets_the_order(rig: Rig) -> None:
    async with rig.scheduler():
        agents = await rig.add_agents("a", "b")
        await rig.running()
        assert (await ask(rig.bus, RequestValidation(ranks=(5,)), job="demo")).accepted
        await wait_for(lambda: all(agent.commands(command.ValidateDevices) for agent in agents), 10)
        orders = [agent.commands(command.ValidateDevices)[0].body for agent in agents]
        first, second = orders
        assert isinstance(first, command.ValidateDevices)
        assert isinstance(second, command.ValidateDevices)
        assert (first.validation_id, first.ranks, first.links) == (second.validation_id, second.ranks, second.links)
        assert first.agent_incarnation == agents[0].incarnation
        assert 5 in first.ranks
        assert all(5 in link or set(link) <= set(first.ranks) for link in first.links)
        refusal = await ask(rig.bus, RequestValidation(ranks=(99,)), job="demo")
        assert not refusal.accepted
        assert "99" in refusal.reason


async def test_silent_corruption_is_passed_on_to_the_rank_s_node(rig: Rig) -> None:
    async with rig.scheduler():
        _, b = await rig.add_agents("a", "b")
        await rig.running()
        assert (await ask(rig.bus, RequestFault(rank=6, fault="corrupt"), job="demo")).accepted
        await wait_for(lambda: b.commands(command.InflictFault), 10)
        order = b.commands(command.InflictFault)[0].body
        assert isinstance(order, command.InflictFault)
        assert (order.rank, order.fault) == (6, "corrupt")
        refusal = await ask(rig.bus, RequestFault(rank=0, fault="slow_link", peer=2, factor=0.25), job="demo")
        assert "clock.virtual" in refusal.reason


async def test_a_slow_link_strikes_at_both_ends(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running(clock={"virtual": True, "flops_per_s": 1e9})
        fault = RequestFault(rank=0, fault="slow_link", peer=2, factor=0.25, for_s=9.0)
        assert (await ask(rig.bus, fault, job="demo")).accepted
        await wait_for(lambda: len(a.commands(command.InflictFault)) == 2, 10)
        orders = [c.body for c in a.commands(command.InflictFault)]
        assert [(o.rank, o.peer, o.factor, o.for_s) for o in orders if isinstance(o, command.InflictFault)] == [
            (0, 2, 0.25, 9.0),
            (2, 0, 0.25, 9.0),
        ]
        nowhere = await ask(rig.bus, RequestFault(rank=0, fault="slow_link", peer=1), job="demo")
        assert nowhere.reason == "no pipeline edge connects ranks 0 and 1"
