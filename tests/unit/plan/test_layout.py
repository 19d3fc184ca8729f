"""Shares, layouts, refinement."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import EMBEDDING, HEAD, Interval, ModelSpec, ParallelPlan, ReplicaPlan, Split, layout, shares
from resihp_plan.layout import refine
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage


@given(st.integers(0, 300), st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(sum))
def test_shares_are_exact_and_near_proportional(num_units: int, weights: list[int]) -> None:
    got = shares(num_units, weights)
    assert sum(got) == num_units
    for units, weight in zip(got, weights, strict=True):
        assert abs(units - num_units * weight / sum(weights)) < 1
        assert weight > 0 or units == 0


@given(st.integers(1, 12), st.integers(1, 60), st.integers(1, 9))
def test_equal_weights_serve_everybody(degree: int, num_units: int, weight: int) -> None:
    got = shares(num_units, [weight] * degree)
    assert max(got) - min(got) <= 1
    assert list(got) == sorted(got, reverse=True), "remainders go to lower indices"
    assert min(got) >= 1 or degree > num_units


@pytest.mark.parametrize(("units", "weights"), [(4, [0, 0]), (-1, [1]), (4, [2, -1]), (4, [])])
def test_shares_refuse_nonsense(units: int, weights: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot share"):
        shares(units, weights)


@settings(max_examples=40)
@given(st.data())
def test_every_replica_holds_every_element_exactly_once(data: st.DataObject) -> None:
    """But for a tied embedding, which the first and the last stage of a replica hold once each."""
    model = data.draw(models())
    plan = data.draw(plans(model))
    held = layout(plan, model)
    for spec in model.tensors:
        for a, replica in enumerate(plan.replicas):
            using = [st_ for st_ in replica.stages if any(r in st_.ranks for r, _ in held.holders(spec.name))]
            is_tied = model.tied_embeddings and spec.layer == EMBEDDING
            assert len(using) == (min(2, len(replica.stages)) if is_tied else 1)
            for st_ in using:
                intervals = sorted(i for rank, i in held.holders(spec.name) if rank in st_.ranks)
                if spec.split is Split.REPLICATED:
                    assert intervals == [Interval(0, spec.shape[0])] * len(st_.ranks), (a, spec)
                else:
                    assert intervals[0].start == 0
                    assert intervals[-1].stop == spec.shape[spec.dim]
                    assert all(x.stop == y.start for x, y in itertools.pairwise(intervals)), (a, spec)


@settings(max_examples=40)
@given(st.data())
def test_shards_follow_tp_order_and_the_grain(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    held = layout(plan, model)
    for replica in plan.replicas:
        for st_ in replica.stages:
            names = [tuple(held.shards(rank)) for rank in st_.ranks]
            assert len(set(names)) == 1, "members of a group hold the same tensors"
            for name in names[0]:
                spec = held.tensors[name]
                intervals = [held.shards(rank)[name] for rank in st_.ranks]
                assert all(i.start % spec.unit == 0 and i.stop % spec.unit == 0 for i in intervals)
                assert intervals == sorted(intervals)
    assert all(not held.shards(rank) for rank in plan.standby)


@settings(max_examples=40)
@given(st.data())
def test_elements_add_up(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model, max_replicas=2))
    held = layout(plan, model)
    for replica in plan.replicas:
        total = sum(held.num_elements(rank) for st_ in replica.stages for rank in st_.ranks)
        expected = 0
        for spec in model.tensors:
            size = 1
            for n in spec.shape:
                size *= n
            copies = sum(1 for s in replica.stages for r in s.ranks if spec.name in held.shards(r))
            stages = min(2, len(replica.stages)) if model.tied_embeddings and spec.layer == EMBEDDING else 1
            expected += size * (copies if spec.split is Split.REPLICATED else stages)
        assert total == expected


def test_ends_of_the_pipeline_hold_embedding_and_head() -> None:
    held = layout(demo_plan(), DEMO_MODEL)
    assert held.shards(1)["embed.weight"] == Interval(128, 256)
    assert "head.weight" not in held.shards(0)
    assert "norm.weight" in held.shards(2)
    assert "embed.weight" not in held.shards(3)
    single = layout(ParallelPlan(1, (ReplicaPlan((stage(0, 8, 5),), 8),)), DEMO_MODEL)
    assert list(single.shards(5)) == [t.name for t in DEMO_MODEL.tensors]
    assert single.shape(5, "layers.3.w_down.weight") == (128, 352)


def test_uneven_shards_have_the_shape_that_the_units_say() -> None:
    plan = ParallelPlan(1, (ReplicaPlan((stage(0, 8, 0, 1, weights=(3, 1)),), 8),))
    held = layout(plan, DEMO_MODEL)
    assert held.shape(0, "layers.0.wq.weight") == (3 * 2 * 16, 128)
    assert held.shape(1, "layers.0.wo.weight") == (128, 1 * 2 * 16)
    assert held.shards(1)["layers.0.w_up.weight"] == Interval(17 * 16, 22 * 16)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted), max_size=6))
def test_refinement_is_the_coarsest_common_cut(pairs: list[list[int]]) -> None:
    intervals = [Interval(a, b) for a, b in pairs]
    pieces = refine(intervals)
    covered = {x for i in intervals for x in range(i.start, i.stop)}
    assert sorted(x for p in pieces for x in range(p.start, p.stop)) == sorted(covered)
    for p in pieces:
        assert all(i.covers(p) or not len(i.overlap(p)) for i in intervals)


def test_model_order_and_layers() -> None:
    model = ModelSpec(num_layers=2)
    assert [t.layer for t in model.tensors] == [-1, *[0] * 9, *[1] * 9, HEAD, HEAD]
    for t in model.tensors:
        assert t.unit * t.num_units == t.shape[t.dim]
        assert t.num_units == model.num_units(t.split)
