"""Documents into micro-batches, micro-batches to replicas."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import (
    CostModel,
    Document,
    MicroBatchWork,
    ParallelPlan,
    ReplicaPlan,
    Schedule,
    StagePlan,
    program,
    simulate,
    slice_batch,
)
from resihp_plan.packing import _longest_first, pack, tapered
from resihp_plan.staging import staged_s
from support.plans import DEMO_MODEL, demo_plan, models, plans


def _in_order(lengths: list[int], capacity: int) -> int:
    """Bins that next fit needs."""
    bins, used = 1, 0
    for n in lengths:
        if used + n > capacity:
            bins, used = bins + 1, 0
        used += n
    return bins


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=40)


@settings(max_examples=40)
@given(LENGTHS, st.integers(40, 60))
def test_everything_that_fits_in_order_is_packed(lengths: list[int], capacity: int) -> None:
    costs = [float(n + n * n) for n in lengths]
    bins = pack(lengths, costs, _in_order(lengths, capacity), capacity)
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in b) <= capacity for b in bins)
    assert all(list(b) == sorted(b) for b in bins)


def test_what_does_not_fit_is_named_with_numbers() -> None:
    with pytest.raises(ValueError, match=r"3 documents with 18 tokens do not fit into 2 micro-batches.*need 3"):
        pack([6, 6, 6], [1.0, 1.0, 1.0], 2, 10)


def test_tight_batches_are_levelled_by_swaps() -> None:
    """Longest first leaves the last document without room here; packed in order the heaviest bin has 6^2 + 5^2."""
    lengths = [6, 5, 3, 3, 5, 1, 4, 5]
    costs = [float(n * n) for n in lengths]
    assert _longest_first(lengths, costs, 3, 11) is None
    bins = pack(lengths, costs, 3, 11)
    assert sorted(i for b in bins for i in b) == list(range(8))
    assert max(sum(lengths[i] for i in b) for b in bins) <= 11
    assert max(sum(costs[i] for i in b) for b in bins) == 6**2 + 4**2


@settings(max_examples=40)
@given(st.data())
def test_every_document_once_and_counts_kept(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    num = plan.num_micro_batches
    documents = _documents(random.Random(data.draw(st.integers(0, 10_000))), num, 64)
    sliced = slice_batch(documents, plan, model, tokens_per_micro_batch=64)
    assert [len(r) for r in sliced.micro_batches] == [r.num_micro_batches for r in plan.replicas]
    used = sorted(i for r in sliced.micro_batches for m in r for i in m)
    assert used == list(range(len(documents)))
    for replica in sliced.work:
        assert all(m.tokens <= 64 for m in replica)
    assert sliced == slice_batch(documents, plan, model, tokens_per_micro_batch=64)


def _documents(random_: random.Random, num_micro_batches: int, capacity: int) -> list[Document]:
    """Documents drawn micro-batch by micro-batch, as the batch generator does."""
    lengths: list[int] = []
    for _ in range(num_micro_batches):
        room = capacity
        while room > 4 and random_.random() < 0.9:
            lengths.append(random_.randint(1, room))
            room -= lengths[-1]
    return [Document(1000 + i, n) for i, n in enumerate(lengths)]


def _seconds(documents: list[Document], plan: ParallelPlan, speed: dict[int, float], known: dict[int, float]) -> float:
    sliced = slice_batch(documents, plan, DEMO_MODEL, tokens_per_micro_batch=128, speed=known)
    return simulate(plan, program(plan), sliced.work, CostModel.for_model(DEMO_MODEL), health=speed).makespan_s


def test_a_slow_replica_gets_what_costs_little() -> None:
    """Same plan, same counts: with known speeds the iteration is over sooner, whatever the documents."""
    ratios = []
    for seed in range(20):
        rng = random.Random(seed)
        documents = [Document(i, rng.choice([4, 8, 16, 32, 64, 96])) for i in range(20)]
        slow = dict.fromkeys((4, 5), 0.5)
        ratios.append(_seconds(documents, demo_plan(), slow, {}) / _seconds(documents, demo_plan(), slow, slow))
    assert sum(ratios) / len(ratios) > 1.1
    assert min(ratios) > 0.97


def test_the_plan_says_how_fast_its_devices_are() -> None:
    documents = _documents(random.Random(1), 8, 128)
    told = dataclasses.replace(demo_plan(), speeds=((4, 500), (5, 500)))
    by_plan = slice_batch(documents, told, DEMO_MODEL, tokens_per_micro_batch=128)
    by_hand = slice_batch(documents, demo_plan(), DEMO_MODEL, tokens_per_micro_batch=128, speed={4: 0.5, 5: 0.5})
    assert by_plan == by_hand
    assert by_plan != slice_batch(documents, demo_plan(), DEMO_MODEL, tokens_per_micro_batch=128)


def test_light_micro_batches_are_first_and_last() -> None:
    documents = [Document(i, n) for i, n in enumerate([120, 100, 80, 60, 40, 20, 10, 5])]
    sliced = slice_batch(documents, demo_plan(), DEMO_MODEL, tokens_per_micro_batch=128)
    for work in sliced.work:
        heaviest = max(range(len(work)), key=lambda m: work[m].sum_sq_len)
        assert 0 < heaviest < len(work) - 1


def test_heavy_micro_batches_go_where_time_is() -> None:
    lengths = [128, 128, *[16] * 48]  # two single-document micro-batches, six of short ones
    documents = [Document(i, n) for i, n in enumerate(lengths)]
    even = slice_batch(documents, demo_plan(), DEMO_MODEL, tokens_per_micro_batch=128)
    assert [sum(i in (0, 1) for m in r for i in m) for r in even.micro_batches] == [1, 1], "one each"
    slow = slice_batch(
        documents, demo_plan(), DEMO_MODEL, tokens_per_micro_batch=128, speed=dict.fromkeys((0, 1, 2, 3), 0.5)
    )
    assert [sum(i in (0, 1) for m in r for i in m) for r in slow.micro_batches] == [0, 2], "both to the fast replica"


def test_an_iteration_is_over_sooner_than_in_order() -> None:
    """Documents as they were drawn, in turn: slower on average, and hardly ever faster."""
    rng = random.Random(3)
    cost = CostModel.for_model(DEMO_MODEL)
    ratios = []
    for _ in range(20):
        documents = _documents(rng, 8, 128)
        in_order: list[list[int]] = [[]]
        for d in documents:
            if sum(in_order[-1]) + d.length > 128:
                in_order.append([])
            in_order[-1].append(d.length)
        naive = [MicroBatchWork.of(b) for b in in_order] + [MicroBatchWork(0, 0)] * (8 - len(in_order))
        plan = demo_plan()
        in_turn = simulate(plan, program(plan), (tuple(naive[::2]), tuple(naive[1::2])), cost).makespan_s
        ratios.append(in_turn / _seconds(documents, plan, {}, {}))
    assert sum(ratios) / len(ratios) > 1.05
    assert min(ratios) > 0.97


@settings(max_examples=30)
@given(LENGTHS, st.integers(1, 3), st.sampled_from([0.5, 0.9, 1.0]))
def test_light_bins_hold_the_shortest(lengths: list[int], light: int, fill: float) -> None:
    costs = [float(n + n * n) for n in lengths]
    bins = tapered(lengths, costs, 8, 60, light=light, fill=fill)
    if bins is None:
        return  # the others had no room
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in b) <= 60 * (fill if n < light else 1.0) for n, b in enumerate(bins))
    ends = [lengths[i] for b in bins[:light] for i in b]
    middle = [lengths[i] for b in bins[light:] for i in b]
    assert not ends or not middle or max(ends) <= min(middle)


@pytest.mark.parametrize("schedule", list(Schedule))
@given(st.data())
@settings(max_examples=10)
def test_estimates_are_those_of_simulate(schedule: Schedule, data: st.DataObject) -> None:
    """One member per stage and no transfer time, so that each stage is one line."""
    num_stages, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8))
    cuts = [4 * s // num_stages for s in range(num_stages + 1)]
    stages = tuple(StagePlan(a, b, (s,), (1,)) for s, (a, b) in enumerate(itertools.pairwise(cuts)))
    plan = ParallelPlan(0, (ReplicaPlan(stages, count),), schedule=schedule)
    work = tuple(MicroBatchWork(n, 0) for n in data.draw(st.lists(st.integers(1, 64), min_size=count, max_size=count)))
    cost = CostModel(DEMO_MODEL, attention_s=1e-6, mlp_s=2e-6, square_s=0.0, head_s=1e-6)
    expected = simulate(plan, program(plan), (work,), cost).makespan_s
    lines = cost.stage_lines(plan.replicas[0], work[0])
    unit_s = [[line.seconds(w) for w in work] for line in lines]
    assert staged_s(schedule, unit_s, cost.backward_ratio) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "document 5 has 0 tokens"), (129, "document 5 has 129 tokens; a micro-batch holds 1 to 128")],
)
def test_impossible_documents_are_refused(length: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        slice_batch([Document(5, length)], demo_plan(), DEMO_MODEL, tokens_per_micro_batch=128)


def test_few_documents_leave_micro_batches_empty() -> None:
    sliced = slice_batch([Document(0, 9)], demo_plan(), DEMO_MODEL, tokens_per_micro_batch=128)
    assert sorted(len(m) for r in sliced.micro_batches for m in r) == [0] * 7 + [1]
    assert dataclasses.astuple(sliced.work[0][0]) in {(0, 0), (9, 81)}
