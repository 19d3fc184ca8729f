"""What can wait: slow devices, recoveries, modes, approval, holds, the breaker; and that nothing stale is applied."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest

from resihp_messages import event
from resihp_messages.request import RequestHold, RequestMode, RequestRuling, RequestThreshold
from resihp_plan import ParallelPlan
from resihp_scheduler import solver
from resihp_store import DecisionMode, DecisionOutcome, DecisionRecord, DeviceState, decisions
from support.scheduler_rig import Rig
from support.scripted_agent import ask, declare
from support.slowness import declare_recovered, declare_slow, score
from support.waiting import wait_for

LONG = {"iterations": 100_000, "clock": {"virtual": True, "flops_per_s": 1e9}}
"""So that every gain pays off before the job ends, and computing is what takes time."""
IN_MEMORY = pytest.mark.parametrize("rig", ["memory-sqlite"], indirect=True)
"""Rules, not adapters: once is enough."""


async def weighed(rig: Rig, count: int) -> tuple[DecisionRecord, ...]:
    """Wait for so many decisions; oldest first."""

    async def found() -> tuple[DecisionRecord, ...] | None:
        async with rig.store.read() as connection:
            rows = await decisions.decisions(connection, "demo")
        return rows if len(rows) >= count else None

    rows = await wait_for(found, rig.patience_s, what=f"{count} decisions")
    assert rows is not None
    return rows


async def plan_of(rig: Rig) -> ParallelPlan:
    return ParallelPlan.from_dict(rig.agents["a"].plans[-1].plan)


async def test_a_slow_device_gets_less_work_and_later_all_of_it(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running(**LONG)
        verdict = await declare_slow(rig.bus, 5, 0.5)
        change = await rig.applied(2)
        (incident,) = await rig.incidents()
        assert (incident.kind, incident.ranks, incident.closed_at) == ("device_slow", (5,), None)
        assert (change.mode, change.incident_id) == ("planned", incident.id)
        assert change.correlation_id == incident.correlation_id == verdict.message_id
        assert change.reason.startswith("rank 5 slow (p 0.50)")
        assert change.alternatives
        (decision,) = await weighed(rig, 1)
        assert (decision.action, decision.outcome) == ("act", DecisionOutcome.ACTED)
        assert decision.reconfiguration_id == change.id
        assert decision.question["speeds"] == {"5": 0.5}
        assert decision.stay_tokens_per_s is not None
        assert decision.predicted_tokens_per_s == change.predicted_tokens_per_s
        assert change.predicted_tokens_per_s is not None
        assert change.predicted_tokens_per_s > decision.stay_tokens_per_s * 1.1
        assert (await rig.devices())[5].p == 0.5
        first = ParallelPlan.from_dict(a.plans[0].plan)
        assert (await plan_of(rig)).replicas != first.replicas

        await declare_recovered(rig.bus, 5)
        change = await rig.applied(3)
        assert change.reason.startswith("rank 5 recovered")
        assert (await plan_of(rig)).replicas == first.replicas
        assert (await rig.devices())[5].p == 1.0
        (incident,) = await rig.incidents()
        assert incident.resolution == "recovered"
        assert [d.state for d in (await rig.devices()).values()] == [DeviceState.HEALTHY] * 8
    (told, _) = await rig.heard(event.DecisionMade, 2)
    assert isinstance(told.body, event.DecisionMade)
    assert told.body.action == "act"


@IN_MEMORY
async def test_an_uncertain_speed_is_averaged_first(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(**LONG)
        await declare_slow(rig.bus, 5, 0.62, error=0.3)
        await wait_for(lambda: _incident_count(rig, 1), rig.patience_s)
        numbers = itertools.count(35)

        async def decided() -> bool:
            await score(rig.bus, 5, 0.5, iteration=next(numbers))  # one per iteration, as the detector does
            async with rig.store.read() as connection:
                return bool(await decisions.decisions(connection, "demo"))

        await wait_for(decided, rig.patience_s)
        (decision,) = await weighed(rig, 1)
        assert decision.question["speeds"]["5"] == pytest.approx(0.5)


async def _incident_count(rig: Rig, count: int) -> bool:
    return len(await rig.incidents()) == count


@IN_MEMORY
async def test_a_speed_that_changes_clearly_is_planned_for_anew(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(**LONG)
        await declare_slow(rig.bus, 5, 0.5)
        await rig.applied(2)
        await weighed(rig, 1)
        await score(rig.bus, 5, 0.52, iteration=40)  # within the hysteresis
        await score(rig.bus, 5, 0.25, iteration=41)
        rows = await weighed(rig, 2)
        assert [d.question["speeds"]["5"] for d in rows] == [0.5, 0.25]


@IN_MEMORY
async def test_advice_waits_for_a_person(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running(**LONG)
        assert (await ask(rig.bus, RequestMode(mode="advise"), job="demo")).accepted
        await declare_slow(rig.bus, 5, 0.5)
        (advice,) = await weighed(rig, 1)
        assert (advice.action, advice.outcome, advice.reconfiguration_id) == ("advise", DecisionOutcome.OPEN, None)
        assert len(a.plans) == 1
        missing = await ask(rig.bus, RequestRuling(ruling="approve", decision_id="nope"), job="demo")
        assert "no decision nope" in missing.reason
        reply = await ask(rig.bus, RequestRuling(ruling="approve", reason="go"), job="demo")
        assert (reply.accepted, reply.decision_id) == (True, advice.id)
        change = await rig.applied(2)
        rows = await weighed(rig, 2)
        assert [d.outcome for d in rows] == [DecisionOutcome.APPROVED, DecisionOutcome.ACTED]
        assert {d.reconfiguration_id for d in rows} == {change.id}
        await rig.heard(event.DecisionClosed)
        again = await ask(rig.bus, RequestRuling(ruling="veto"), job="demo")
        assert "no open decision" in again.reason


@IN_MEMORY
async def test_a_veto_holds_until_something_changes(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running(**LONG)
        await ask(rig.bus, RequestMode(mode="advise"), job="demo")
        await declare_slow(rig.bus, 5, 0.5)
        await weighed(rig, 1)
        assert (await ask(rig.bus, RequestRuling(ruling="veto", reason="no"), job="demo")).accepted
        await ask(rig.bus, RequestMode(mode="act"), job="demo")  # thinks again, and finds the veto
        await declare_slow(rig.bus, 2, 0.4, node="a")
        await rig.applied(2)
        rows = await weighed(rig, 2)
        assert [d.outcome for d in rows] == [DecisionOutcome.VETOED, DecisionOutcome.ACTED]
        assert rows[1].question["speeds"] == {"2": 0.4, "5": 0.5}
        assert len(a.plans) == 2


@IN_MEMORY
async def test_holds_and_off(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running(**LONG)
        assert (await ask(rig.bus, RequestHold(reason="evaluation"), job="demo")).accepted
        await declare_slow(rig.bus, 5, 0.5)
        await wait_for(lambda: _incident_count(rig, 1), rig.patience_s)
        assert (await ask(rig.bus, RequestMode(mode="off"), job="demo")).accepted
        assert (await ask(rig.bus, RequestHold(for_s=0.0), job="demo")).accepted
        async with rig.store.read() as connection:
            control = await decisions.control(connection, "demo")
        assert (control.mode, control.is_held) == (DecisionMode.OFF, False)
        await declare(rig.bus, [3], node="a")  # a loss is acted on in every mode
        await rig.applied(2)
        assert [d.action for d in await weighed(rig, 1)] == ["repair"]
        await ask(rig.bus, RequestMode(mode="act"), job="demo")
        rows = await weighed(rig, 2)
        assert rows[1].question["speeds"] == {"5": 0.5}
        assert a.plans[1].mode == "recovery"


async def test_a_device_that_recovers_while_it_is_planned_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is applied: the situation of the question is over."""
    asked, go_on = threading.Event(), threading.Event()
    really = solver.solve

    def slowly(*arguments: Any) -> Any:
        asked.set()
        assert go_on.wait(30)
        return really(*arguments)

    async with rig.scheduler(plan_deadline_s=100.0):
        a, _ = await rig.add_agents("a", "b")
        await rig.running(**LONG)
        monkeypatch.setattr(solver, "solve", slowly)
        await declare_slow(rig.bus, 5, 0.5)
        await asyncio.to_thread(asked.wait, 30)
        await declare_recovered(rig.bus, 5)
        await wait_for(lambda: _closed(rig), rig.patience_s)
        go_on.set()
        (decision,) = await weighed(rig, 1)
        assert decision.outcome is DecisionOutcome.SUPERSEDED
        assert decision.plan is not None
        await declare(rig.bus, [3], node="a")  # whatever else was under way would be over by now
        await rig.applied(2)
        assert [p.mode for p in a.plans] == ["initial", "recovery"]


async def _closed(rig: Rig) -> bool:
    return all(i.closed_at is not None for i in await rig.incidents())


@IN_MEMORY
async def test_a_change_that_is_refused_is_tried_again_a_few_times(rig: Rig) -> None:
    async with rig.scheduler():
        a, b = await rig.add_agents("a", "b")
        await rig.running(**LONG)
        a.refuses, b.installs = "worker says no", False
        await declare_slow(rig.bus, 5, 0.5)
        for epoch in (2, 3, 4):
            await rig.change(epoch, "rejected")
        marker = await declare(rig.bus, [77], node="b")
        await rig.logged(marker.message_id)
        assert len(await rig.changes()) == 4
        a.refuses, b.installs = "", True
        await score(rig.bus, 5, 0.3, iteration=50)  # another question
        change = await rig.applied(5)
        assert change.reason.startswith("rank 5 slow (p 0.30)")


@IN_MEMORY
async def test_many_slow_devices_trip_the_breaker(rig: Rig) -> None:
    async with rig.scheduler():
        a, _ = await rig.add_agents("a", "b")
        await rig.running(**LONG)
        await ask(rig.bus, RequestHold(), job="demo")
        await ask(rig.bus, RequestThreshold(name="detect_scale", value=2.0), job="demo")
        for rank, p in ((1, 0.5), (4, 0.45), (6, 0.4)):
            await declare_slow(rig.bus, rank, p)
        await wait_for(lambda: _incident_count(rig, 3), rig.patience_s)
        await ask(rig.bus, RequestHold(for_s=0.0), job="demo")
        (advice,) = await weighed(rig, 1)
        assert advice.action == "advise"
        told = [e.body for e in await rig.heard(event.ModeChanged, 4) if isinstance(e.body, event.ModeChanged)]
        assert told[-1].breaker_tripped
        assert told[-1].thresholds == {"detect_scale": 2.0}  # whoever goes by them has heard nothing else
        assert "3 of 8 devices" in told[-1].reason
        assert len(a.plans) == 1
        assert (await ask(rig.bus, RequestRuling(ruling="approve"), job="demo")).accepted  # a person has looked
        await rig.applied(2)


@IN_MEMORY
async def test_a_slow_device_that_dies_is_one_story(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(**LONG)
        verdict = await declare_slow(rig.bus, 5, 0.5)
        await rig.applied(2)
        await declare(rig.bus, [5], node="b", epoch=2)
        await rig.applied(3)
        slow, lost = await rig.incidents()
        assert slow.resolution == "the device was lost"
        assert slow.correlation_id == lost.correlation_id == verdict.message_id


async def test_a_new_leader_decides_about_what_the_last_one_heard(rig: Rig) -> None:
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running(**LONG)
        await ask(rig.bus, RequestHold(for_s=0.05), job="demo")  # over before the next leader looks
        await declare_slow(rig.bus, 5, 0.5)
        await wait_for(lambda: _incident_count(rig, 1), rig.patience_s)
    async with rig.scheduler():
        await rig.applied(2)
    assert [d.action for d in await weighed(rig, 1)] == ["act"]
