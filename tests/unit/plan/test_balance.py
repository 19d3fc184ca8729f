"""Layers, micro-batches and groups are spread as well as brute force does it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import CostModel, MicroBatchWork, ModelSpec, ParallelPlan, StagePlan, Workload, validate
from resihp_plan.plan import ReplicaPlan
from resihp_plan.planner import Predictor, predict
from resihp_plan.planner.balance import Balancer, group_weights
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage

WORK = MicroBatchWork(128, 8192)


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, total), parts - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *c, total))) for c in cuts]


@settings(max_examples=40)
@given(st.lists(st.sampled_from([1.0, 0.9, 0.5, 0.3]), min_size=1, max_size=4), st.integers(4, 10))
def test_layers_are_spread_optimally(speeds: list[float], num_layers: int) -> None:
    model = ModelSpec(num_layers=num_layers)
    balancer = Balancer(CostModel.for_model(model), WORK, dict(enumerate(speeds)))
    groups = [stage(0, 1, rank) for rank in range(len(speeds))]
    chosen = balancer.spread_layers(groups)
    assert [s.layer_start for s in chosen] == [0, *(s.layer_stop for s in chosen[:-1])]
    assert chosen[-1].layer_stop == num_layers

    def slowest(counts: tuple[int, ...]) -> float:
        return max(
            balancer.pace_s(StagePlan(0, n, (s,), (1,)), last=s == len(counts) - 1) for s, n in enumerate(counts)
        )

    best = min(slowest(c) for c in _compositions(num_layers, len(speeds)))
    assert slowest(tuple(s.layer_stop - s.layer_start for s in chosen)) == best


def test_more_stages_than_layers_are_refused() -> None:
    balancer = Balancer(CostModel.for_model(ModelSpec(num_layers=1)), WORK, None)
    with pytest.raises(ValueError, match="2 stages for 1 layers"):
        balancer.spread_layers([stage(0, 1, 0), stage(0, 1, 1)])


def test_groups_take_the_fastest_and_leave_out_who_slows_them() -> None:
    cost = CostModel.for_model(DEMO_MODEL)
    everybody = Balancer(cost, WORK, None).best_group((7, 3, 5))
    assert everybody.ranks == (7, 3, 5), "order stays"
    assert Balancer(cost, WORK, {3: 0.1}).best_group((7, 3, 5)).ranks == (7, 5)
    assert Balancer(cost, WORK, {3: 0.1}).best_group((7, 3, 5), largest=True).ranks == (7, 3, 5)
    assert len(Balancer(cost, WORK, None).best_group(tuple(range(6))).ranks) == 4, "no more than head groups"


def test_weights_follow_speed_only_where_everybody_keeps_a_unit() -> None:
    assert group_weights((0, 1), DEMO_MODEL, None) == (1, 1)
    assert group_weights((0, 1), DEMO_MODEL, {1: 0.5}) == (100, 50)
    assert group_weights((0, 1), DEMO_MODEL, {1: 0.05}) == (1, 1), "a share of 4 * 5/105 units would be none"
    assert group_weights(tuple(range(5)), DEMO_MODEL, None) is None


@settings(max_examples=40)
@given(st.data())
def test_predictor_agrees_with_the_whole_simulation(data: st.DataObject) -> None:
    """Replicas run one by one and remembered give the same time as all of them together."""
    model = data.draw(models())
    cost = CostModel.for_model(model)
    plan = data.draw(plans(model))
    health = {rank: data.draw(st.sampled_from([1.0, 0.5])) for rank in plan.active}
    workload = Workload.typical(plan.num_micro_batches, 40)
    predictor = Predictor(workload, cost, health)
    expected = predict(plan, workload, cost, health=health).step_s
    assert predictor.step_s(plan) == expected
    assert predictor.step_s(plan) == expected, "again, from memory"


def test_estimate_ranks_like_the_simulator() -> None:
    """The quick formula may be off, but it must not mislead: within a tenth of the pipeline's simulated time."""
    cost = CostModel.for_model(DEMO_MODEL)
    workload = Workload.typical(8, 128)
    balancer = Balancer(cost, workload.micro_batch, None)
    for stages in (demo_plan().replicas[0].stages, (stage(0, 4, 0, 1), stage(4, 8, 2)), (stage(0, 8, 0),)):
        plan = ParallelPlan(1, (ReplicaPlan(stages, 8),))
        validate(plan, DEMO_MODEL)
        fill, pace = balancer.fill_and_pace(stages)
        simulated = predict(plan, workload, cost).simulation.pipeline_s
        assert fill + 7 * pace == pytest.approx(simulated, rel=0.1)
