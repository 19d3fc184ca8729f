"""How far a state is from the redone one: equal parts to the last bit, whoever adds them up."""

from __future__ import annotations

import sys

import pytest
import torch

from resihp_plan import gradient_buckets, layout
from resihp_trainer.digests import Fingerprints
from resihp_trainer.dispute import Disputed
from resihp_trainer.shards import ShardSet
from support.trainer_cases import SPEC
from support.trainer_state import PLANS, values

UNEVEN = PLANS[1]
"""Replicas with other stages and degrees: owners of a bucket hold its slices in tensors of other shapes."""


def distances(rank: int, *, damage: float = 0.0) -> dict[str, tuple[float, float, float]]:
    held = layout(UNEVEN, SPEC)
    buckets = [b for b in gradient_buckets(UNEVEN, SPEC) if rank in b.owners]
    earlier = values(held, rank)
    disputed = Disputed.of(earlier, 9, torch.float64)
    for shard in earlier.shards.values():
        shard.parameter.mul_(1.0 + 1e-9)  # redone: everything is a little different
    if damage:
        name = buckets[0].pieces[0].tensor
        piece = buckets[0].pieces[0]
        disputed.earlier.slices(name, piece.start, piece.stop)[1].view(-1)[0] += damage
    return disputed.distances(earlier, Fingerprints.of(earlier, buckets), buckets)


def test_owners_with_the_same_bits_are_equally_far() -> None:
    told = {rank: distances(rank) for rank in UNEVEN.active}
    by_bucket: dict[str, set[tuple[float, float, float]]] = {}
    for buckets in told.values():
        for bucket, sums in buckets.items():
            by_bucket.setdefault(bucket, set()).add(sums)
    assert len(by_bucket) > 4
    assert all(len(sums) == 1 for sums in by_bucket.values())
    assert all(
        parameter > 0 and first == second == 0.0 for sums in by_bucket.values() for parameter, first, second in sums
    )


@pytest.mark.parametrize("damage", [1e-9, float("inf"), float("nan")])
def test_a_damaged_owner_is_farther(damage: float) -> None:
    healthy, damaged = distances(4), distances(4, damage=damage)
    (bucket,) = [b for b in healthy if healthy[b] != damaged[b]]
    assert damaged[bucket][1] == (pytest.approx(damage, rel=0.5) if damage == 1e-9 else sys.float_info.max)
    assert damaged[bucket][::2] == healthy[bucket][::2]


def test_another_layout_is_not_compared() -> None:
    disputed = Disputed.of(values(layout(PLANS[0], SPEC), 1), 9, torch.float64)
    now: ShardSet = values(layout(UNEVEN, SPEC), 1)
    assert disputed.distances(now, Fingerprints.of(now, ()), ()) == {}
