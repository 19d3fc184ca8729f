"""Policies side by side, lifetimes, the choice of degrees, and the what-if question."""

from __future__ import annotations

import random

import pytest

from resihp_plan import Cluster, CostModel, MemoryModel, Schedule, Workload, validate
from resihp_plan.planner import Infeasible, step_s_at
from resihp_plan.planner.choose import choose_initial, tuned
from resihp_plan.planner.lifetime import Fault, Pauses, generate, live, read_node_faults
from resihp_plan.planner.policies import Arena, Policy, evaluate
from resihp_plan.planner.whatif import what_if
from support.plans import DEMO_MODEL, demo_plan

CLUSTER = Cluster.of(8, devices_per_node=4)
WORKLOAD = Workload.typical(16, 128)
COST = CostModel.for_model(DEMO_MODEL)
PLAN, HEALTHY_S = tuned(demo_plan(), CLUSTER, WORKLOAD, COST, schedules=Schedule.ONE_F_ONE_B.family)
ARENA = Arena(PLAN, CLUSTER, WORKLOAD, COST)
BEST_S = min(HEALTHY_S, evaluate(Policy.RESIHP, ARENA, {}).step_s or HEALTHY_S)
"""Best-known healthy plan: the search may find unlike replicas that suit these few micro-batches better."""
CASES = ({}, {3: 0.0}, {3: 0.0, 5: 0.45}, {0: 0.5}, {0: 0.0, 1: 0.0, 6: 0.5}, dict.fromkeys(range(4), 0.75))


@pytest.mark.parametrize("policy", list(Policy))
def test_no_faulted_case_beats_the_healthy_one(policy: Policy) -> None:
    for health in CASES:
        outcome = evaluate(policy, ARENA, health)
        if outcome.step_s is not None:
            assert outcome.step_s >= BEST_S * (1 - 1e-9), (policy, health)
        assert outcome == evaluate(policy, ARENA, health)
    expected = BEST_S if policy is Policy.RESIHP else HEALTHY_S
    assert evaluate(policy, ARENA, {}).step_s == pytest.approx(expected, rel=1e-9)


def test_the_search_is_not_slower_than_any_policy() -> None:
    for health in CASES:
        ours = evaluate(Policy.RESIHP, ARENA, health).step_s
        assert ours is not None
        for policy in Policy:
            other = evaluate(policy, ARENA, health).step_s
            assert other is None or ours <= other * (1 + 1e-9), (policy, health)


def test_who_cannot_go_on() -> None:
    whole_stage = dict.fromkeys((0, 1, 4, 5), 0.0)
    for policy in (Policy.STATIC, Policy.RECYCLE, Policy.S_RECYCLE, Policy.RESIHP_PAPER):
        assert evaluate(policy, ARENA, whole_stage).step_s is None
    assert evaluate(Policy.RESIHP, ARENA, whole_stage).step_s is not None


def test_tuned_layers_are_not_slower() -> None:
    assert step_s_at(demo_plan(), Workload.typical(8, 128), COST, {}) * 2 >= HEALTHY_S
    validate(PLAN, DEMO_MODEL)
    small = MemoryModel(DEMO_MODEL, 128, dict.fromkeys(range(8), 1000))
    with pytest.raises(Infeasible):
        tuned(demo_plan(), CLUSTER, WORKLOAD, COST, memory=small)


def test_degrees_are_chosen_from_nothing() -> None:
    found = choose_initial(CLUSTER, DEMO_MODEL, WORKLOAD, COST)
    assert all(c.tp * c.pp * c.dp == 8 for c in found)
    assert [c.step_s for c in found] == sorted(c.step_s for c in found)
    assert found[0].step_s <= HEALTHY_S
    for c in found:
        validate(c.plan, DEMO_MODEL, alive=range(8), num_micro_batches=16)


def test_what_if() -> None:
    found = what_if(demo_plan(), DEMO_MODEL, CLUSTER, {3: 0.0}, Workload.typical(8, 128), clock=lambda: 0.0)
    assert found.do_nothing == 0.0
    assert 0 < found.best.predicted_tokens_per_s < found.now
    assert found.break_even_s == pytest.approx(found.best.change_s)
    mild = what_if(demo_plan(), DEMO_MODEL, CLUSTER, {3: 0.5}, Workload.typical(8, 128), clock=lambda: 0.0)
    assert mild.break_even_s is not None
    assert mild.break_even_s > (mild.best.change_s or 0.0)


def test_a_lifetime_adds_up() -> None:
    faults = (Fault(100.0, 400.0, 3, 0.0), Fault(600.0, 700.0, 5, 0.5))
    pauses = Pauses(detect_s=2.0, restart_s=50.0, checkpoint_every_s=20.0)
    static = live(Policy.STATIC, ARENA, HEALTHY_S, faults, 1000.0, pauses=pauses)
    assert static.stopped_s == pytest.approx(300.0 - 62.0)
    ours = live(Policy.RESIHP, ARENA, HEALTHY_S, faults, 1000.0, pauses=pauses)
    assert ours.stopped_s == 0.0
    assert static.goodput < ours.goodput < 1.0
    for run in (static, ours):
        assert run.segments[0].start_s == 0.0
        assert run.segments[-1].stop_s == 1000.0
        assert all(a.stop_s == b.start_s for a, b in zip(run.segments, run.segments[1:], strict=False))


def test_traces_and_generators() -> None:
    lines = [
        "start_h,end_h,duration_h,node,level,class,desc",
        "1,3,2,1,Hardware,GPU,x",
        "2,4,2,0,Other,Stress Test Failure,x",
        "2,4,2,9,Hardware,GPU,x",
    ]
    found = read_node_faults(lines, ["n0", "n1"], lambda n: [0, 1] if n == "n0" else [2, 3], start_h=2.0)
    assert found == (Fault(0.0, 3600.0, 2, 0.0), Fault(0.0, 3600.0, 3, 0.0))
    with pytest.raises(ValueError, match="columns"):
        read_node_faults(["a,b"], ["n0"], lambda n: [0])
    made = generate(random.Random(1), range(64), 8, 100.0)
    assert made == generate(random.Random(1), range(64), 8, 100.0)
    assert all(0 <= f.start_s < f.stop_s for f in made)
    assert {f.p for f in made} >= {0.0, 0.5}
