"""Cost and simulation: closed forms, bounds, critical path, monotonicity."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import (
    CostModel,
    MicroBatchWork,
    ModelSpec,
    ParallelPlan,
    Program,
    ReplicaPlan,
    StagePlan,
    Workload,
    program,
    simulate,
)
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage

MODEL = ModelSpec(num_layers=12)
FREE_LINKS = CostModel(MODEL, attention_s=1.0, mlp_s=1.0, square_s=0.0, head_s=0.0)
"""Compute only; powers of two as constants keep sums of times exact."""
ONE_TOKEN = MicroBatchWork(1, 1)


def _pipeline(layers: list[int], count: int) -> ParallelPlan:
    bounds = [0, *itertools.accumulate(layers)]
    stages = tuple(StagePlan(a, b, (s,), (1,)) for s, (a, b) in enumerate(itertools.pairwise(bounds)))
    return ParallelPlan(1, (ReplicaPlan(stages, count),))


def _makespan(plan: ParallelPlan, cost: CostModel = FREE_LINKS, work: MicroBatchWork = ONE_TOKEN) -> float:
    return simulate(plan, program(plan), tuple((work,) * r.num_micro_batches for r in plan.replicas), cost).makespan_s


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("count", [1, 2, 5, 8, 24])
@pytest.mark.parametrize("ratio", [1.0, 2.0, 3.0])
def test_1f1b_closed_form_is_exact(num_stages: int, count: int, ratio: float) -> None:
    """Equal stages and free links: (M + P - 1)(f + b) (Narayanan et al. 2021)."""
    layers = 12 // num_stages
    cost = dataclasses.replace(FREE_LINKS, backward_ratio=ratio)
    forward = 2.0 * layers
    assert _makespan(_pipeline([layers] * num_stages, count), cost) == (count + num_stages - 1) * forward * (1 + ratio)


def test_busy_and_idle_show_the_bubble() -> None:
    plan = _pipeline([3, 3, 3, 3], 4)
    result = simulate(plan, program(plan), ((ONE_TOKEN,) * 4,), FREE_LINKS)
    assert result.makespan_s == 7 * 18.0
    assert set(result.busy_s.values()) == {4 * 18.0}
    assert set(result.idle_s.values()) == {3 * 18.0}
    assert result.pipeline_s == result.makespan_s


def test_two_unequal_stages_by_hand() -> None:
    """Layers 8 + 4, M = 2, backward twice forward: stage 1 waits, stage 0 is the bottleneck.

    F00 0-16, F01 16-32 | F10 16-24, B10 24-40, F11 40-48, B11 48-64 | B00 40-72, B01 72-104.
    """
    plan = _pipeline([8, 4], 2)
    result = simulate(plan, program(plan), ((ONE_TOKEN, ONE_TOKEN),), FREE_LINKS)
    assert result.makespan_s == 104.0
    assert result.busy_s == {0: 96.0, 1: 48.0}
    kinds = [step.what.split("(")[0] for step in result.critical_path if "send" not in step.what]
    assert kinds == ["forward", "forward", "backward", "backward", "backward", "vote"]


@settings(max_examples=40)
@given(st.data())
def test_critical_path_is_a_chain_to_the_makespan(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    cost = CostModel.for_model(model)
    work = tuple(
        tuple(MicroBatchWork(n, n * n) for n in data.draw(st.lists(st.integers(1, 99), min_size=m, max_size=m)))
        for m in (r.num_micro_batches for r in plan.replicas)
    )
    result = simulate(plan, program(plan), work, cost)
    path = result.critical_path
    assert path[0].start_s == 0.0
    assert path[-1].what == "vote"
    assert path[-1].stop_s == result.makespan_s
    assert all(x.stop_s == y.start_s for x, y in itertools.pairwise(path)), "no gap: each step waits for the one before"
    assert all(0 <= b <= result.makespan_s * (1 + 1e-9) for b in result.busy_s.values())
    assert set(result.busy_s) == set(plan.world)
    assert result.pipeline_s <= result.makespan_s


@settings(max_examples=40)
@given(st.data(), st.floats(0.1, 0.9))
def test_a_slower_device_never_helps(data: st.DataObject, p: float) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    cost = CostModel.for_model(model)
    workload = Workload.typical(plan.num_micro_batches, 64)
    victim = data.draw(st.sampled_from(plan.active))
    healthy = simulate(plan, program(plan), workload.work(plan), cost)
    slow = simulate(plan, program(plan), workload.work(plan), cost, health={victim: p})
    assert slow.makespan_s >= healthy.makespan_s
    assert slow.busy_s[victim] == pytest.approx(healthy.busy_s[victim] / p)


def test_the_slowest_member_paces_its_group() -> None:
    plan = ParallelPlan(1, (ReplicaPlan((stage(0, 12, 0, 1),), 4),))
    assert _makespan(plan) == 4 * 12 * 3.0
    slow = simulate(plan, program(plan), ((ONE_TOKEN,) * 4,), FREE_LINKS, health={1: 0.5})
    assert slow.makespan_s == 2 * 4 * 12 * 3.0
    assert slow.busy_s == {0: 4 * 36.0, 1: 8 * 36.0}
    # 3 head groups and 2/3 of the blocks for the fast one: better than half and half, by less than ideal (grain)
    uneven = ParallelPlan(1, (ReplicaPlan((stage(0, 12, 0, 1, weights=(2, 1)),), 4),))
    better = simulate(uneven, program(uneven), ((ONE_TOKEN,) * 4,), FREE_LINKS, health={1: 0.5})
    assert better.makespan_s == pytest.approx(4 * 12 * 3 * (3 / 4 + 15 / 22))


def test_transfers_and_collectives_take_time() -> None:
    cost = dataclasses.replace(FREE_LINKS, transfer_latency_s=0.5)
    plan = _pipeline([6, 6], 1)
    assert _makespan(plan, cost) == 2 * 36.0 + 2 * 0.5, "there and back"
    tp = ParallelPlan(1, (ReplicaPlan((stage(0, 12, 0, 1),), 1),))
    busy = dataclasses.replace(FREE_LINKS, collective_latency_s=0.25)
    # 12 layers and the head, forward and backward, then the bucket of the norms and the vote
    assert _makespan(tp, busy) == pytest.approx(36.0 + 2 * 25 * 0.25 + 2 * 0.25)


def test_replicas_wait_for_each_other_at_the_gradients() -> None:
    cost = CostModel.for_model(DEMO_MODEL)
    first, second = demo_plan().replicas
    counts = (dataclasses.replace(first, num_micro_batches=1), dataclasses.replace(second, num_micro_batches=7))
    lopsided = dataclasses.replace(demo_plan(), replicas=counts)
    even = Workload.typical(8, 128)
    a = simulate(lopsided, program(lopsided), even.work(lopsided), cost)
    b = simulate(demo_plan(), program(demo_plan()), even.work(demo_plan()), cost)
    assert a.makespan_s > 1.3 * b.makespan_s
    assert a.idle_s[0] > a.idle_s[4]
    assert a.makespan_s - a.pipeline_s == pytest.approx(b.makespan_s - b.pipeline_s, rel=0.5)


def test_attention_grows_with_the_square_of_document_lengths() -> None:
    cost = CostModel.for_model(ModelSpec())
    packed = cost.layer_s(MicroBatchWork.of([1024] * 4))
    one = cost.layer_s(MicroBatchWork.of([4096]))
    linear = cost.layer_s(MicroBatchWork(4096, 0))
    assert one - linear == pytest.approx(4 * (packed - linear))
    wide = CostModel.for_model(ModelSpec(), flops_per_s=8e10)
    assert wide.layer_s(MicroBatchWork(4096, 10)) == pytest.approx(cost.layer_s(MicroBatchWork(4096, 10)) / 2)


def test_unequal_degrees_send_chunks_and_gather() -> None:
    cost = CostModel(DEMO_MODEL, 0, 0, 0, 0, collective_latency_s=1.0, transfer_latency_s=0.0, bytes_per_s=128.0 * 4)
    assert cost.transfer_s(2, 2, 6) == 6.0
    assert cost.transfer_s(2, 1, 6) == 3.0, "two chunks side by side, no gather"
    assert cost.transfer_s(1, 2, 6) == 3.0 + 1.0 + 3.0, "chunk, then all-gather of the other half"
    assert cost.all_reduce_s(1, 10**9) == 0.0
    assert cost.all_reduce_s(2, 128) == 2.0


def test_wrong_input_is_refused() -> None:
    plan = _pipeline([6, 6], 2)
    with pytest.raises(ValueError, match=r"work of \[1\] micro-batches for a plan with \[2\]"):
        simulate(plan, program(plan), ((ONE_TOKEN,),), FREE_LINKS)
    with pytest.raises(ValueError, match=r"rank 1 has p = 0.0"):
        simulate(plan, program(plan), ((ONE_TOKEN,) * 2,), FREE_LINKS, health={1: 0.0})
    never = Program({**program(plan).ops, 0: ()})
    with pytest.raises(ValueError, match="waits for ever"):
        simulate(plan, never, ((ONE_TOKEN,) * 2,), FREE_LINKS)
    with pytest.raises(ValueError, match="at least 1 of each"):
        Workload.typical(0, 5)
