"""Decisions and controls: read back equal, closed once; the defaults of a job about which nobody has said anything."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from resihp_store import ControlRecord, DecisionMode, DecisionOutcome, Store, decisions, queries
from support.store import NOON, decision, device, reconfiguration, spec


async def test_decisions_and_controls(store: Store) -> None:
    token = await store.lease(holder="test", ttl_s=60).acquire()
    assert token is not None
    first = decision("a", again_at=NOON + timedelta(seconds=9))
    second = decision("a", "d2", created_at=NOON + timedelta(seconds=1), action="stay", plan=None)
    held = ControlRecord(
        "a", DecisionMode.ADVISE, True, NOON + timedelta(seconds=60), "3 of 8 slow", {"latency_s": 1e-3}
    )
    async with store.transaction(token) as work:
        for job in ("a", "b"):
            await work.add_job(job, spec(name=job))
        await work.add_devices([device("a", rank) for rank in range(2)])
        await work.set_speeds("a", {1: 0.5})
        await work.add_reconfiguration(reconfiguration("a"))
        await decisions.add_decision(work, second)
        await decisions.add_decision(work, first)
        await decisions.put_control(work, ControlRecord("a"))
        await decisions.put_control(work, held)
    async with store.read() as connection:
        assert await decisions.decisions(connection, "a") == (first, second)
        assert await decisions.decisions(connection, "a", newest_first=True, limit=1) == (second,)
        assert await decisions.decisions(connection, "b") == ()
        assert await decisions.decision(connection, "d2") == second
        assert await decisions.decision(connection, "nope") is None
        assert await decisions.control(connection, "a") == held
        assert await decisions.control(connection, "b") == ControlRecord("b")
        assert [d.p for d in await queries.devices(connection, "a")] == [1.0, 0.5]
    async with store.transaction(token) as work:
        await decisions.close_decision(work, "d1", DecisionOutcome.APPROVED, "go")
        await decisions.close_decision(work, "d1", DecisionOutcome.VETOED, "too late")
        await decisions.set_reconfiguration(work, "d1", "r1")
        now = work.now
    async with store.read() as connection:
        (closed,) = await decisions.decisions(connection, "a", outcome=DecisionOutcome.APPROVED)
        (left,) = await decisions.decisions(connection, "a", outcome=DecisionOutcome.OPEN)
    expected = replace(first, outcome=DecisionOutcome.APPROVED, note="go", closed_at=now, reconfiguration_id="r1")
    assert closed == expected
    assert left == second


def test_a_hold_ends_at_its_time_or_when_it_is_lifted() -> None:
    assert not ControlRecord("a").holds(NOON)
    assert ControlRecord("a", is_held=True).holds(NOON)
    protected = ControlRecord("a", is_held=True, held_until=NOON)
    assert protected.holds(NOON - timedelta(seconds=1))
    assert not protected.holds(NOON)
