"""Iteration reports become summaries and the throughput that a change achieved."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from resihp_messages import Kind
from resihp_messages.request import RequestEvict
from resihp_store import queries
from support.scheduler_rig import Rig
from support.scripted_agent import ask, declare
from support.waiting import wait_for


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


async def test_predictions_follow_what_the_job_achieves(rig: Rig) -> None:
    """Before its first iterations there is nothing to scale by; then a plan is predicted at the last one's pace."""
    async with rig.scheduler():
        await rig.add_agents("a", "b")
        await rig.running()
        first = (await rig.changes())[0]
        assert (first.predicted_by, first.speed_share) == ("nominal", 1.0)
        await _train(rig, range(1, 9))
        await wait_for(lambda: _committed(rig, 8), 20)
        await declare(rig.bus, [3], node="a")
        change = await rig.applied(2)
        assert change.predicted_by == "pace"
        assert change.predicted_tokens_per_s == pytest.approx(2048.0, rel=0.05)  # 1,024 tokens in 0.5 s
        assert "at the job's pace" in change.reason
        assert all(a["predicted_tokens_per_s"] < 4096.0 for a in change.alternatives)
        await declare(rig.bus, [6], node="b", epoch=2)  # before the new plan has a pace of its own
        again = await rig.applied(3)
        assert again.predicted_by == "pace"
        assert again.predicted_tokens_per_s == pytest.approx(2048.0, rel=0.1)
        assert (await ask(rig.bus, RequestEvict(ranks=(5,)), job="demo")).accepted
        assert (await rig.applied(4)).predicted_by == "pace"


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
