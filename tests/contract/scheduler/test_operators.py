"""What operators ask of the plan: evict, readmit, undo, thresholds. Real effects, and answers that say why not."""

from __future__ import annotations

import pytest

from resihp_messages import event
from resihp_messages.request import (
    Reply,
    RequestEvict,
    RequestHold,
    RequestMode,
    RequestReadmit,
    RequestThreshold,
    RequestUndo,
)
from resihp_plan import ParallelPlan
from resihp_store import ControlRecord, decisions
from support.scheduler_rig import Rig
from support.scripted_agent import ask, declare
from support.slowness import declare_slow
from support.waiting import wait_for

LONG = {"iterations": 100_000, "clock": {"virtual": True, "flops_per_s": 1e9}}
IN_MEMORY = pytest.mark.parametrize("rig", ["memory-sqlite"], indirect=True)


async def control(rig: Rig) -> ControlRecord:
    async with rig.store.read() as connection:
        return await decisions.control(connection, "demo")


def plans(rig: Rig) -> list[ParallelPlan]:
    return [ParallelPlan.from_dict(p.plan) for p in rig.agents["a"].plans]


async def say(rig: Rig, body: object) -> Reply:
    return await ask(rig.bus, body, job="demo")  # type: ignore[arg-type]  # every body here is a request


async def test_an_evicted_device_stands_by_until_it_is_readmitted(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(**LONG)
        assert (await say(rig, RequestMode(mode="off"))).accepted  # an operator's word counts in every mode
        assert (await say(rig, RequestHold())).accepted
        reply = await say(rig, RequestEvict(ranks=(5,), reason="bad link"))
        assert reply.accepted, reply.reason
        change = await rig.applied(2)
        assert change.id == reply.reconfiguration_id
        assert (change.mode, change.reason) == ("planned", "rank 5 evicted: bad link")
        first, without = plans(rig)
        assert (5 in first.active, 5 in without.active, without.standby) == (True, False, (5,))
        assert (await control(rig)).evicted == {5}

        await declare(rig.bus, [3], node="a", epoch=2)  # a loss does not bring it back
        await rig.applied(3)
        assert 5 not in plans(rig)[-1].active
        assert plans(rig)[-1].standby == (5,)

        assert (await say(rig, RequestHold(for_s=0.0))).accepted
        assert (await say(rig, RequestMode(mode="act"))).accepted
        refusal = await say(rig, RequestReadmit(ranks=(6,)))
        assert refusal.reason == "not evicted: rank 6; evicted: rank 5"
        assert (await say(rig, RequestReadmit(ranks=(5,), reason="cable replaced"))).accepted
        change = await rig.applied(4)
        assert change.reason.startswith("rank 5 readmitted")
        assert 5 in plans(rig)[-1].active
        assert (await control(rig)).evicted == frozenset()
    told = [e.body for e in await rig.heard(event.ModeChanged, 6) if isinstance(e.body, event.ModeChanged)]
    assert [b.evicted for b in told] == [(), (), (5,), (5,), (5,), ()]
    assert told[2].reason == "rank 5 evicted: bad link"


@IN_MEMORY
async def test_evictions_that_cannot_be(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        assert "no job" in (await say(rig, RequestEvict(ranks=(5,)))).reason
        await rig.running(**LONG)
        assert (await say(rig, RequestEvict(ranks=(5, 77)))).reason == "the job has no rank 77"
        assert (await say(rig, RequestEvict(ranks=tuple(range(8))))).reason == "no device would be left"
        assert len(await rig.changes()) == 1
        assert (await control(rig)).evicted == frozenset()


@IN_MEMORY
async def test_what_is_evicted_is_used_rather_than_to_end_the_job(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(**LONG)
        await say(rig, RequestEvict(ranks=(4, 5, 6, 7)))
        await rig.applied(2)
        assert set(plans(rig)[-1].active) == {0, 1, 2, 3}
        await declare(rig.bus, [0, 1, 2, 3], node="a", epoch=2)
        change = await rig.change(3, "applied")
        assert change.mode == "recovery"
        assert set(rig.agents["b"].plans[-1].plan["replicas"][0]["stages"][0]["ranks"]) <= {4, 5, 6, 7}


async def test_undo_goes_back_and_stays_there(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(**LONG)
        assert "no other layout" in (await say(rig, RequestUndo())).reason
        await declare_slow(rig.bus, 5, 0.5)
        await rig.applied(2)
        reply = await say(rig, RequestUndo(reason="slower than promised"))
        assert reply.accepted, reply.reason
        change = await rig.applied(3)
        assert change.id == reply.reconfiguration_id
        assert change.reason == "back to the layout of epoch 1: slower than promised"
        first, changed, back = plans(rig)
        assert first.replicas == back.replicas != changed.replicas
        marker = await declare(rig.bus, [77], node="b")  # whatever the rules made of it is done by then
        await rig.logged(marker.message_id)
        assert len(await rig.changes()) == 3
        assert (await say(rig, RequestUndo(reason="after all"))).accepted
        await rig.applied(4)
        assert plans(rig)[-1].replicas == changed.replicas


@IN_MEMORY
async def test_undo_of_an_eviction_and_of_a_loss(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(**LONG)
        await say(rig, RequestEvict(ranks=(5,)))
        await rig.applied(2)
        assert (await say(rig, RequestUndo())).accepted
        await rig.applied(3)
        assert plans(rig)[-1].replicas == plans(rig)[0].replicas
        assert (await control(rig)).evicted == frozenset()
        await declare(rig.bus, [3], node="a", epoch=3)
        await rig.applied(4)
        refusal = await say(rig, RequestUndo())
        assert refusal.reason == "the layout of epoch 3 needs rank 3, which cannot be used now"


@IN_MEMORY
async def test_a_threshold_changes_what_is_decided(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running(**LONG)
        assert (await say(rig, RequestThreshold(name="min_gain", value=5.0, reason="frozen week"))).accepted
        assert (await say(rig, RequestThreshold(name="detect_scale", value=2.0))).accepted  # the detector's
        await declare_slow(rig.bus, 5, 0.5)

        async def weighed(count: int) -> tuple[decisions.DecisionRecord, ...]:
            async def found() -> bool:
                async with rig.store.read() as connection:
                    return len(await decisions.decisions(connection, "demo")) >= count

            await wait_for(found, rig.patience_s, what=f"{count} decisions")
            async with rig.store.read() as connection:
                return await decisions.decisions(connection, "demo")

        (stay,) = await weighed(1)
        assert (stay.action, len(a.plans)) == ("stay", 1)
        assert "at least 500% is asked for" in stay.reason
        assert (await say(rig, RequestThreshold(name="min_gain"))).accepted  # weighed anew, with the default
        await rig.applied(2)
        assert [d.action for d in await weighed(2)] == ["stay", "act"]
    told = [e.body for e in await rig.heard(event.ModeChanged, 3) if isinstance(e.body, event.ModeChanged)]
    assert [b.thresholds for b in told] == [
        {"min_gain": 5.0},
        {"min_gain": 5.0, "detect_scale": 2.0},
        {"detect_scale": 2.0},
    ]
