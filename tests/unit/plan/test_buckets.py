"""Gradient buckets cover each tensor exactly once per replica and make all copies equal."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import Interval, ParallelPlan, ReplicaPlan, buckets_by_rank, gradient_buckets, layout
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage


@settings(max_examples=40)
@given(st.data())
def test_every_shard_is_covered_exactly_once(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    held = layout(plan, model)
    buckets = gradient_buckets(plan, model)
    assert [b.owners for b in buckets] == sorted({b.owners for b in buckets}), "one bucket per owner set, in one order"
    mine = buckets_by_rank(buckets)
    for rank in plan.active:
        for name, interval in held.shards(rank).items():
            parts = sorted((p.start, p.stop) for b in mine[rank] for p in b.pieces if p.tensor == name)
            assert [x for a, b in parts for x in range(a, b)] == list(range(interval.start, interval.stop))
    for bucket in buckets:
        for piece in bucket.pieces:
            holders = {r for r, i in held.holders(piece.tensor) if i.covers(Interval(piece.start, piece.stop))}
            assert holders == set(bucket.owners), "owners are all holders, in all replicas"


@settings(max_examples=40)
@given(st.data())
def test_reduction_equals_the_sum_over_stages_and_replicas(data: st.DataObject) -> None:
    """Integer gradients: those of each stage that uses a tensor are cut by the layout, reduced by buckets, and
    compared. Only a tied embedding is used by two stages of a replica."""
    model = data.draw(models())
    plan = data.draw(plans(model))
    held = layout(plan, model)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    full = {
        (a, s, t.name): rng.integers(-9, 9, size=t.shape[t.dim]).astype(float)
        for a, replica in enumerate(plan.replicas)
        for s in range(len(replica.stages))
        for t in model.tensors
    }
    users = {t.name: {_stage(plan, rank) for rank, _ in held.holders(t.name)} for t in model.tensors}
    sums = {name: sum(full[(*user, name)] for user in found) for name, found in users.items()}
    buckets = gradient_buckets(plan, model)
    norm = 0.0
    for bucket in buckets:
        for piece in bucket.pieces:
            total = np.zeros(piece.stop - piece.start)
            for rank in bucket.owners:
                mine = full[(*_stage(plan, rank), piece.tensor)]
                total += mine[piece.start : piece.stop] / bucket.copies(rank)
            np.testing.assert_allclose(total, sums[piece.tensor][piece.start : piece.stop], atol=1e-9)
            norm += sum(bucket.norm_weight * float(total @ total) for _ in bucket.owners)
    expected_norm = sum(float(np.sum(np.square(total))) for total in sums.values())
    np.testing.assert_allclose(norm, expected_norm)
    assert sum(b.num_elements for b in buckets) == sum(int(np.prod(t.shape)) for t in model.tensors)
    assert held.ranks == plan.active


def _stage(plan: ParallelPlan, rank: int) -> tuple[int, int]:
    position = plan.position(rank)
    assert position is not None
    return position[:2]


def test_unequal_degrees_refine_each_other() -> None:
    plan = ParallelPlan(
        1,
        (
            ReplicaPlan((stage(0, 8, 0, 1, 2),), 4),
            ReplicaPlan((stage(0, 8, 3, 4),), 4),
            ReplicaPlan((stage(0, 8, 5),), 0),
        ),
    )
    owners = [b.owners for b in gradient_buckets(plan, DEMO_MODEL)]
    assert owners == [(0, 1, 2, 3, 4, 5), (0, 3, 5), (1, 3, 5), (1, 4, 5), (2, 4, 5)]
    replicated = gradient_buckets(plan, DEMO_MODEL)[0]
    assert {p.tensor.split(".")[-2] for p in replicated.pieces} == {"attn_norm", "mlp_norm", "norm"}
    assert [replicated.copies(r) for r in replicated.owners] == [3, 3, 3, 2, 2, 1]


def test_single_owner_needs_no_reduction() -> None:
    plan = ParallelPlan(1, (ReplicaPlan(demo_plan().replicas[0].stages, 8),))
    buckets = gradient_buckets(plan, DEMO_MODEL)
    alone = [b for b in buckets if not b.is_shared]
    assert [b.owners for b in alone] == [(0,), (1,), (2,), (3,)]
    assert [b.owners for b in buckets if b.is_shared] == [(0, 1), (2, 3)]
