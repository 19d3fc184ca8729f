"""Speeds to plan with: verdicts, scores, hysteresis, probation, returned devices. Times of day are the test's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from resihp_messages import JobSpec
from resihp_scheduler.aim import SURE_AFTER_S, aim
from resihp_scheduler.planning import JobPlanning
from resihp_scheduler.rules.speeds import SETTLED_S, Estimate
from resihp_scheduler.situation import Situation
from resihp_store import IncidentRecord, JobRecord, JobState, PlanRecord
from support.store import NOON, device, incident, node, spec


class NoScores:
    def estimate(self, job: str, rank: int) -> Estimate | None:
        return None


class Scored:
    def __init__(self, p: float, error: float = 0.01) -> None:
        self.answer = Estimate(p, error, 1)

    def estimate(self, job: str, rank: int) -> Estimate | None:
        return self.answer


def situation(
    *, planned: dict[int, float] | None = None, without: set[int] | None = None, real: bool = False
) -> Situation:
    """Eight devices on two nodes under their first plan; `without`: ranks that the plan does not know."""
    plan = JobPlanning(JobSpec()).initial().with_epoch(1)
    if without:
        kept = tuple(r for r in plan.replicas if not without & {x for s in r.stages for x in s.ranks})
        plan = replace(plan, replicas=(replace(kept[0], num_micro_batches=8),))
    job = JobRecord(
        "demo",
        JobState.RUNNING,
        "",
        spec(clock={"virtual": not real}),
        1,
        plan.digest,
        40,
        10,
        None,
        None,
        None,
        NOON,
        NOON,
        None,
    )
    devices = tuple(device("demo", r, node=f"n{r // 4}", p=(planned or {}).get(r, 1.0)) for r in range(8))
    row = PlanRecord("demo", 1, plan.digest, plan.to_dict(), 1000.0, NOON, NOON)
    return Situation(job, devices, (row,), (), {n: node(n) for n in ("n0", "n1")})


def slow(rank: int, p: float, *, width: float = 0.01, **changes: Any) -> IncidentRecord:
    verdict = {"fault": "device_slow", "p": p, "p_low": p * (1 - width), "p_high": p * (1 + width)}
    return incident("demo", f"s{rank}", kind="device_slow", ranks=(rank,), verdict=verdict, **changes)


def test_a_known_speed_is_planned_with() -> None:
    found = aim(situation(), [slow(5, 0.5)], NoScores(), NOON)
    assert (found.speeds, found.again_in_s) == ({5: 0.5}, None)


def test_on_a_real_clock_it_must_have_lasted_for_a_while() -> None:
    early = aim(situation(real=True), [slow(5, 0.5)], NoScores(), NOON + timedelta(seconds=4))
    assert (early.speeds, early.again_in_s) == ({}, SETTLED_S - 4)
    assert aim(situation(real=True), [slow(5, 0.5)], NoScores(), NOON + timedelta(seconds=SETTLED_S)).speeds == {5: 0.5}


def test_an_uncertain_one_waits_for_scores_but_not_for_ever() -> None:
    doubtful = [slow(5, 0.6, width=0.3)]
    early = aim(situation(), doubtful, NoScores(), NOON + timedelta(seconds=1))
    assert early.speeds == {}
    assert early.again_in_s is not None
    assert aim(situation(), doubtful, Scored(0.5), NOON + timedelta(seconds=1)).speeds == {5: 0.5}
    late = aim(situation(), doubtful, NoScores(), NOON + timedelta(seconds=SURE_AFTER_S))
    assert late.speeds == {5: 0.6}


@pytest.mark.parametrize(("scored", "planned"), [(0.53, 0.5), (0.47, 0.5), (0.6, 0.6), (0.3, 0.3)])
def test_hysteresis(scored: float, planned: float) -> None:
    found = aim(situation(planned={5: 0.5}), [slow(5, 0.5)], Scored(scored), NOON)
    assert found.speeds == {5: planned}


def test_stage_times_of_the_new_plan_count_more_finely() -> None:
    running = situation(planned={5: 0.5})
    assert aim(running, [slow(5, 0.5)], NoScores(), NOON, {5: 0.505}).speeds == {5: 0.5}
    assert aim(running, [slow(5, 0.5)], NoScores(), NOON, {5: 0.48}).speeds == {5: 0.48}


def test_the_first_recovery_counts_at_once_the_second_after_a_while() -> None:
    running = situation(planned={5: 0.5})
    first = slow(5, 0.5, closed_at=NOON)
    assert aim(running, [first], NoScores(), NOON).speeds == {}
    second = replace(first, id="again", closed_at=NOON + timedelta(seconds=100))
    at = {s: aim(running, [first, second], NoScores(), NOON + timedelta(seconds=100 + s)) for s in (0, 30, 60)}
    assert {s: dict(a.speeds) for s, a in at.items()} == {0: {5: 0.5}, 30: {5: 0.75}, 60: {}}
    assert (at[0].again_in_s, at[30].again_in_s, at[60].again_in_s) == (30.0, 30.0, None)
    assert "probation" in at[0].notes[0]


def test_a_node_that_keeps_coming_back_stands_by_at_first() -> None:
    back = situation(without={4, 5, 6, 7})
    assert back.newcomers == {4, 5, 6, 7}
    lost = incident("demo", "n1", kind="node_lost", ranks=(4, 5, 6, 7), closed_at=NOON)
    assert aim(back, [lost], NoScores(), NOON).held_back == frozenset()
    found = aim(back, [lost, replace(lost, id="n2")], NoScores(), NOON + timedelta(seconds=10))
    assert found.held_back == {4, 5, 6, 7}
    assert found.again_in_s == 20.0
    alone = incident("demo", "w", kind="worker_lost", ranks=(4,), closed_at=NOON)  # an operator asked for it
    assert 4 not in aim(back, [lost, alone], NoScores(), NOON).held_back
