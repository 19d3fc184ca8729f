"""Fingerprints: equal for equal owners of unequal layouts, different after any flipped bit."""

from __future__ import annotations

import torch

from resihp_plan import ParallelPlan, gradient_buckets, layout
from resihp_trainer.digests import Fingerprints
from resihp_trainer.shards import ShardSet
from support.trainer_cases import SPEC, replica, stage

PLAN = ParallelPlan(
    1, (replica(1, stage(0, 1, [0]), stage(1, 4, [1, 2, 3], [2, 1, 1])), replica(1, stage(0, 4, [4, 5], [3, 1])))
)


def test_replicas_with_unequal_layouts_have_equal_fingerprints() -> None:
    buckets = gradient_buckets(PLAN, SPEC)
    held = {
        rank: ShardSet.initial(layout(PLAN, SPEC), rank, seed=3, dtype=torch.float32, tick=lambda: None)
        for rank in PLAN.world
    }

    taken = {rank: Fingerprints.of(held[rank], [b for b in buckets if rank in b.owners]) for rank in PLAN.world}

    def of(rank: int) -> dict[str, str]:
        return taken[rank].take()

    seen: dict[str, set[str]] = {}
    for rank in PLAN.world:
        for bucket, digest in of(rank).items():
            seen.setdefault(bucket, set()).add(digest)
    assert len(seen) == sum(b.is_shared for b in buckets) > 3
    assert all(len(digests) == 1 for digests in seen.values())
    before = of(4)
    for changed in (held[4].shards["head.weight"].parameter, held[4].shards["layers.2.w_up.weight"].exp_avg_sq):
        changed.view(-1).view(torch.int32)[0] ^= 1
        after = of(4)
        assert sum(after[b] != before[b] for b in before) == 1
        before = after
