"""What a job achieved scales what is predicted for it."""

from __future__ import annotations

import json
import time

import pytest

from resihp_messages import JobSpec
from resihp_plan import Cluster, ParallelPlan
from resihp_plan.planner import plan_after_loss
from resihp_scheduler.calibration import Calibration
from resihp_scheduler.pace import Observed
from resihp_scheduler.planning import Choice, JobPlanning
from resihp_scheduler.question import Question
from resihp_scheduler.solve import solve, solve_fast
from resihp_store import IterationRecord
from resihp_store.pace import FEWEST, NEWEST, settled_rate

SHARED = JobSpec()
VIRTUAL = JobSpec.model_validate({"clock": {"virtual": True}})
PLAN = JobPlanning(SHARED).initial().with_epoch(1)
LEFT = frozenset(range(8)) - {3}
ACHIEVED = 1400.0
MEASURED = Calibration(2.0, 2.0, 1e-3, 0.01, 120, 5000, 12)


def after_loss(spec: JobSpec, observed: Observed | None) -> tuple[JobPlanning, Choice]:
    planning = JobPlanning(spec, None, observed)
    decision = plan_after_loss(
        PLAN, planning.model, Cluster.of(8), LEFT, planning.workload, clock=time.monotonic, cost=planning.cost
    )
    return planning, planning.choice_of(decision, PLAN, {}, LEFT)


@pytest.mark.parametrize("spec", [SHARED, VIRTUAL])
def test_the_plan_that_was_observed_is_predicted_as_it_was(spec: JobSpec) -> None:
    planning = JobPlanning(spec, None, Observed(PLAN, ACHIEVED, {}))
    assert planning.tokens_per_s(PLAN) == pytest.approx(ACHIEVED)
    assert planning.basis == "pace"
    slow = JobPlanning(spec, None, Observed(PLAN, ACHIEVED, {3: 0.5}))  # it was observed with a slow device
    assert slow.tokens_per_s(PLAN, {3: 0.5}) == pytest.approx(ACHIEVED)
    assert slow.tokens_per_s(PLAN) > ACHIEVED


def test_devices_of_their_own_keep_the_proportions_of_the_cost_model() -> None:
    nominal, bare = after_loss(VIRTUAL, None)
    paced, scaled = after_loss(VIRTUAL, Observed(PLAN, ACHIEVED, {}))
    factor = ACHIEVED / nominal.tokens_per_s(PLAN)
    assert scaled.plan == bare.plan
    assert scaled.predicted_tokens_per_s == pytest.approx(factor * bare.predicted_tokens_per_s)
    assert scaled.bound_tokens_per_s == pytest.approx(ACHIEVED * 7 / 8)
    assert (bare.predicted_by, scaled.predicted_by, scaled.speed_share) == ("nominal", "pace", 7 / 8)
    assert "by nominal constants" in bare.reason
    assert "at the job's pace" in scaled.reason
    for one, other in zip(scaled.alternatives, bare.alternatives, strict=True):
        assert one["predicted_tokens_per_s"] == pytest.approx(factor * other["predicted_tokens_per_s"])
    assert paced.bound({}, LEFT) == scaled.bound_tokens_per_s


def test_workers_that_share_cores_do_the_same_work_with_fewer_of_them() -> None:
    """What the lost worker leaves of the processors, the others get: only the work itself counts."""
    _, choice = after_loss(SHARED, Observed(PLAN, ACHIEVED, {}))
    assert choice.predicted_tokens_per_s == pytest.approx(ACHIEVED, rel=0.05)
    assert choice.bound_tokens_per_s == pytest.approx(ACHIEVED)
    assert choice.speed_share == 1.0


def test_devices_that_return_are_used_although_they_share_cores() -> None:
    """They add nothing to what the processors do, so nothing to the prediction; plans are for devices all the same."""
    half = JobPlanning(SHARED).initial().to_dict()
    half["replicas"] = [{**half["replicas"][0], "num_micro_batches": 8}]
    few = ParallelPlan.from_dict(half).with_epoch(1)
    devices = tuple((rank, f"n{rank // 4}") for rank in range(8))
    asked = Question(SHARED, devices, frozenset(range(8)), {}, few, 2, 900.0, 2.0, observed=Observed(few, ACHIEVED, {}))
    choice = solve(asked, time.monotonic)
    assert isinstance(choice, Choice)
    assert set(choice.plan.active) == set(range(8))
    assert choice.gain is not None
    assert choice.gain > 0.5
    assert choice.predicted_tokens_per_s == pytest.approx(ACHIEVED, rel=0.1)
    assert choice.stay_tokens_per_s == pytest.approx(ACHIEVED)


def test_measured_constants_need_no_pace() -> None:
    assert JobPlanning(VIRTUAL, MEASURED).basis == "constants"
    observed = JobPlanning(VIRTUAL, MEASURED, Observed(PLAN, ACHIEVED, {}))
    assert observed.basis == "constants"
    assert observed.tokens_per_s(PLAN) == JobPlanning(VIRTUAL, MEASURED).tokens_per_s(PLAN)


def test_a_question_carries_the_pace_to_both_planners() -> None:
    asked = Question(
        VIRTUAL,
        tuple((r, "n0") for r in range(8)),
        frozenset(range(8)),
        {5: 0.5},
        PLAN,
        2,
        900.0,
        2.0,
        observed=Observed(PLAN, ACHIEVED, {5: 0.5}),
    )
    question = Question.from_dict(json.loads(json.dumps(asked.to_dict())))
    assert question == asked
    for answer in (solve(question, time.monotonic), solve_fast(question, time.monotonic)):
        assert isinstance(answer, Choice)
        assert answer.stay_tokens_per_s == pytest.approx(ACHIEVED)
        assert answer.predicted_by == "pace"
        assert Choice.from_dict(json.loads(json.dumps(answer.to_dict()))) == answer


def rows(*rates: int) -> list[IterationRecord]:
    return [IterationRecord("j", k + 1, 1, None, 1.0, rate, 1, 1) for k, rate in enumerate(rates)]


def test_the_pace_is_the_median_of_the_newest_iterations_but_the_first() -> None:
    assert settled_rate([]) is None
    assert settled_rate(rows(9, *[100] * (FEWEST - 1))) is None
    assert settled_rate(rows(9, 100, 120, 110)) == 110
    assert settled_rate(rows(9, *[1] * 20, *[50] * NEWEST)) == 50
