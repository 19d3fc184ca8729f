"""Exchanged units: times against `simulate`, quotas and Algorithm 1 against the rules, never worse than any policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import (
    Cluster,
    CostModel,
    ModelSpec,
    ParallelPlan,
    Schedule,
    Workload,
    check_program,
    program,
    simulate,
    validate,
)
from resihp_plan.plan import known_speeds
from resihp_plan.planner import Assumptions, plan_change, plan_initial
from resihp_plan.planner.choose import tuned
from resihp_plan.planner.migrate import algorithm_1, by_quota
from resihp_plan.planner.policies import Arena, Policy, evaluate
from resihp_plan.planner.shape import shape_of
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import GroupMaker
from support.plans import DEMO_MODEL, demo_plan, migrating_plans


@given(migrating_plans(), st.lists(st.sampled_from([1.0, 0.5, 0.3]), min_size=40, max_size=40))
@settings(max_examples=30)
def test_times_are_those_of_simulate(plan: ParallelPlan, speeds: list[float]) -> None:
    model, health = ModelSpec(num_layers=plan.replicas[0].stages[-1].layer_stop), dict(enumerate(speeds))
    plan = replace(plan, speeds=known_speeds(health, plan.active))
    cost = CostModel.for_model(model, bytes_per_s=1e8, transfer_latency_s=1e-3, tp_bytes_per_s=5e8)
    workload = Workload.typical(plan.num_micro_batches, 64)
    expected = simulate(plan, program(plan), workload.work(plan), cost, health=health)
    maker = GroupMaker(cost, workload.micro_batch, health, None)
    shape = shape_of(plan, maker)
    assert shape is not None
    space = Space(maker, workload, plan.schedule)
    assert space.step_s(shape) - space.sync_s(shape) == pytest.approx(expected.pipeline_s, rel=1e-9)
    assert space.least_s(shape) <= space.step_s(shape) * (1 + 1e-9)


UNITS = st.lists(
    st.lists(st.sampled_from([1.0, 1.5, 3.0, inf]), min_size=2, max_size=2), min_size=2, max_size=3
).filter(lambda rows: all(any(row[s] < inf for row in rows) for s in range(2)))


@given(UNITS, st.integers(1, 6), st.sampled_from(Schedule), st.integers(0, 2))
@settings(max_examples=60)
def test_each_unit_runs_once_where_somebody_works(
    unit_s: list[list[float]], count: int, schedule: Schedule, delta: int
) -> None:
    plan = plan_initial(Cluster.of(2 * len(unit_s)), DEMO_MODEL, 1, 2, len(unit_s), count * len(unit_s))
    plan = ParallelPlan(1, plan.replicas, schedule=schedule)
    counts = [count] * len(unit_s)
    for found in (
        by_quota(unit_s, counts),
        by_quota(unit_s, counts, sparing=True),
        algorithm_1(plan, unit_s, 2.0, delta),
    ):
        assert found is not None
        moved = ParallelPlan(2, plan.replicas, migrations=found, schedule=schedule)
        validate(moved, DEMO_MODEL)
        check_program(program(moved), moved)
        for a, row in enumerate(unit_s):
            for s, seconds in enumerate(row):
                assert seconds < inf or moved.num_units(a, s) == 0


def test_quotas_are_the_exact_min_max() -> None:
    found = by_quota([[1.0, 1.0], [3.0, 1.0]], [8, 8])
    assert found is not None
    assert Counter((m.replica, m.stage, m.executor) for m in found) == {(1, 0, 0): 4}
    assert by_quota([[1.0], [inf]], [2, 2]) is not None
    assert by_quota([[inf], [inf]], [2, 2]) is None


def test_a_slow_group_gives_units_away_by_algorithm_1() -> None:
    plan = plan_initial(Cluster.of(4), DEMO_MODEL, 1, 2, 2, 16)
    found = algorithm_1(plan, [[1.0, 1.0], [1.0, 2.0]], 2.0, 1)
    assert found is not None
    slow = [m for m in found if m.stage == 1]
    assert {(m.replica, m.executor) for m in slow} == {(1, 0)}
    assert 1 <= len(slow) <= 4


CLUSTER = Cluster.of(8, devices_per_node=4)
WORKLOAD = Workload.typical(8, 128)
COST = CostModel.for_model(DEMO_MODEL)
FAMILY = Schedule.ONE_F_ONE_B.family
PLAN, _ = tuned(demo_plan(), CLUSTER, WORKLOAD, COST, schedules=FAMILY)
ARENA = Arena(PLAN, CLUSTER, WORKLOAD, COST)
OTHERS = tuple(p for p in Policy if p is not Policy.RESIHP)


@given(st.dictionaries(st.integers(0, 7), st.sampled_from([0.0, 0.0, 0.1, 0.5, 0.75, 0.9]), min_size=1, max_size=5))
@settings(max_examples=15)
def test_never_worse_than_any_policy(health: dict[int, float]) -> None:
    """As found by the search, and by `plan_change` within the tolerance by which it prefers the smaller change."""
    ours = evaluate(Policy.RESIHP, ARENA, health)
    assert ours.step_s is not None
    decision = plan_change(
        PLAN, DEMO_MODEL, CLUSTER, health, WORKLOAD, clock=lambda: 0.0, assuming=Assumptions(COST, schedules=FAMILY)
    )
    for policy in OTHERS:
        other = evaluate(policy, ARENA, health)
        if other.step_s is None:
            continue
        assert ours.step_s <= other.step_s * (1 + 1e-9), policy
        assert decision.predicted_step_s <= other.step_s * 1.0051, policy
