"""Plans for slow, recovered, returned and lost devices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import (
    Cluster,
    CostModel,
    Device,
    MemoryModel,
    ModelSpec,
    ParallelPlan,
    Workload,
    check_program,
    program,
    validate,
)
from resihp_plan.planner import (
    Assumptions,
    Decision,
    Infeasible,
    InfeasibleKind,
    Price,
    Switches,
    plan_change,
    plan_initial,
    predict,
    step_s_at,
)
from support.plans import DEMO_MODEL, demo_plan

CLUSTER = Cluster.of(8)
WORKLOAD = Workload.typical(8, 128)
COST = CostModel.for_model(DEMO_MODEL)


def _change(health: dict[int, float], plan: ParallelPlan | None = None, **options: object) -> Decision:
    return plan_change(plan or demo_plan(), DEMO_MODEL, CLUSTER, health, WORKLOAD, clock=lambda: 0.0, **options)  # type: ignore[arg-type]


def test_nothing_to_do_is_the_same_plan() -> None:
    decision = _change({})
    assert decision.plan == demo_plan()
    assert (decision.name, decision.bytes_moved, decision.change_s) == ("stay", 0, 0.0)
    assert decision.predicted_tokens_per_s == pytest.approx(decision.bound_tokens_per_s)


@pytest.mark.parametrize("rank", range(8))
def test_a_slow_device_costs_little_more_than_its_own_slowness(rank: int) -> None:
    decision = _change({rank: 0.5})
    assert decision.plan.epoch == 2
    assert decision.predicted_tokens_per_s >= 0.94 * decision.bound_tokens_per_s
    unmitigated = WORKLOAD.tokens / step_s_at(demo_plan(), WORKLOAD, COST, {rank: 0.5})
    assert decision.predicted_tokens_per_s > 1.3 * unmitigated
    exact = predict(decision.plan, WORKLOAD, COST, health={rank: 0.5})
    assert exact.step_s == pytest.approx(decision.predicted_step_s, rel=0.04)


@given(st.dictionaries(st.integers(0, 7), st.sampled_from([0.0, 0.1, 0.4, 0.5, 0.75, 0.9]), max_size=7))
@settings(max_examples=10)
def test_decisions_are_sound(health: dict[int, float]) -> None:
    decision = _change(health)
    usable = {r for r in range(8) if health.get(r, 1.0) > 0}
    validate(decision.plan, DEMO_MODEL, alive=usable, num_micro_batches=8)
    check_program(program(decision.plan), decision.plan)
    assert set(decision.plan.world) == usable
    assert decision == _change(health), "the same question has the same answer"
    healthy_s = step_s_at(demo_plan(), WORKLOAD, COST, {})
    assert decision.predicted_step_s >= healthy_s * 0.999, "no faulted job is faster than the healthy one"
    if set(demo_plan().active) <= usable:
        assert decision.predicted_step_s <= step_s_at(demo_plan(), WORKLOAD, COST, health) * 1.0051


def test_a_returned_device_is_used_again() -> None:
    lost = _change({3: 0.0})
    assert 3 not in lost.plan.world
    back = _change({}, lost.plan, reference=demo_plan())
    assert back.plan.active == tuple(range(8))
    assert back.predicted_tokens_per_s == pytest.approx(back.bound_tokens_per_s, rel=0.01)


def test_too_short_a_horizon_moves_nothing() -> None:
    hurried = _change({5: 0.5}, assuming=Assumptions(price=Price(horizon_s=3.0, rebuild_s=2.5)))
    assert hurried.name == "stay"
    patient = _change({5: 0.5}, assuming=Assumptions(price=Price(horizon_s=600.0, rebuild_s=2.5)))
    assert patient.plan != demo_plan()
    slow_links = _change({5: 0.5}, assuming=Assumptions(price=Price(600.0, rebuild_s=0.1, bytes_per_s=1e3)))
    assert slow_links.bytes_moved == 0, "micro-batches can still move"
    assert [r.num_micro_batches for r in slow_links.plan.replicas] == [5, 3]
    assert any("longer than" in a.why_lost or "fewer tokens" in a.why_lost for a in slow_links.alternatives)


def test_what_is_as_good_but_a_larger_change_says_so() -> None:
    """To have "-0.0% fewer tokens" is no reason."""
    reasons = [a.why_lost for a in _change({3: 0.0}).alternatives]
    assert any(reason.startswith("no more tokens that count") for reason in reasons)
    assert not any(reason.startswith(("-", "0.0%")) for reason in reasons)


def test_refusals() -> None:
    with pytest.raises(Infeasible) as none:
        _change(dict.fromkeys(range(8), 0.0))
    assert none.value.kind is InfeasibleKind.NO_DEVICES
    memory = MemoryModel(DEMO_MODEL, 128, dict.fromkeys(range(8), 1000))
    with pytest.raises(Infeasible) as full:
        _change({0: 0.0}, assuming=Assumptions(memory=memory))
    assert full.value.kind is InfeasibleKind.MEMORY
    with pytest.raises(ValueError, match=r"ranks \[9\]"):
        _change({9: 0.5})


def test_slower_hardware_gets_less_work() -> None:
    """Two generations: node n1 has half the peak, and is healthy at it."""
    cluster = Cluster(tuple(Device(r, f"n{r // 4}", peak=1.0 if r < 4 else 0.5) for r in range(8)))
    decision = plan_change(demo_plan(), DEMO_MODEL, cluster, {}, WORKLOAD, clock=lambda: 0.0)
    assert decision.plan != demo_plan()
    assert decision.predicted_step_s < 0.8 * step_s_at(demo_plan(), WORKLOAD, COST, dict.fromkeys(range(4, 8), 0.5))


@pytest.mark.parametrize("off", ["uneven_tp", "layers", "counts", "regroup"])
def test_every_ingredient_can_be_switched_off(off: str) -> None:
    full = _change({5: 0.5, 6: 0.0})
    less = _change({5: 0.5, 6: 0.0}, switches=replace(Switches(), **{off: False}))
    assert less.predicted_tokens_per_s <= full.predicted_tokens_per_s * 1.006
    if off == "uneven_tp":
        assert all(set(s.weights) == {1} for r in less.plan.replicas for s in r.stages)
        assert all(len(s.ranks) in (1, 2, 4) for r in less.plan.replicas for s in r.stages)


def test_a_slow_link_is_planned_around() -> None:
    """Rank 5's way out has a tenth of the bandwidth, on links where that matters."""
    cost = CostModel.for_model(DEMO_MODEL, bytes_per_s=2e7)
    slow = replace(cost, link_of={5: 0.1})
    stay = step_s_at(demo_plan(), WORKLOAD, slow, {})
    assert stay > 1.2 * step_s_at(demo_plan(), WORKLOAD, cost, {})
    decision = plan_change(
        demo_plan(), DEMO_MODEL, CLUSTER, {}, WORKLOAD, clock=lambda: 0.0, assuming=Assumptions(slow)
    )
    assert decision.predicted_step_s < 0.9 * stay
    exact = predict(decision.plan, WORKLOAD, slow)
    assert exact.step_s == pytest.approx(decision.predicted_step_s, rel=0.1)


def _everything(model: ModelSpec, counts: int) -> list[ParallelPlan]:
    """All layer divisions and counts of 2 replicas x 2 stages x TP 1."""
    base = plan_initial(Cluster.of(4), model, 1, 2, 2, counts)
    found = []
    for a, b, m in itertools.product(range(1, model.num_layers), range(1, model.num_layers), range(counts + 1)):
        cut = [
            replace(
                rep,
                stages=(replace(rep.stages[0], layer_stop=c), replace(rep.stages[1], layer_start=c)),
                num_micro_batches=n,
            )
            for rep, c, n in zip(base.replicas, (a, b), (m, counts - m), strict=True)
        ]
        found.append(replace(base, replicas=tuple(cut)))
    return found


def test_close_to_the_optimum_of_all_divisions() -> None:
    """Every layer division and count, for every single and double slowness of 4 devices."""
    model, workload = ModelSpec(num_layers=6), Workload.typical(6, 128)
    cost, cluster = CostModel.for_model(ModelSpec(num_layers=6)), Cluster.of(4)
    everything = _everything(model, 6)
    ratios = []
    for ranks in [(0,), (1,), (3,), (0, 1), (0, 3), (1, 2)]:
        health = dict.fromkeys(ranks, 0.5)
        best = min(step_s_at(p, workload, cost, health) for p in everything)
        found = plan_change(
            everything[0], model, cluster, health, workload, clock=lambda: 0.0, assuming=Assumptions(cost)
        )
        ratios.append(best / found.predicted_step_s)
    assert min(ratios) >= 0.95
    assert sum(ratios) / len(ratios) >= 0.99
