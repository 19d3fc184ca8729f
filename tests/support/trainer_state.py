"""State whose every element is known, in layouts of all kinds."""

from __future__ import annotations

from types import MappingProxyType

import torch

from resihp_plan import Layout, ParallelPlan
from resihp_trainer.shards import Shard, ShardSet, narrow
from support.trainer_cases import HEALTHY, replica, stage

PLANS = (
    HEALTHY,
    ParallelPlan(
        2,
        (
            replica(4, stage(0, 1, [0]), stage(1, 4, [1, 2, 3], [2, 1, 1])),
            replica(2, stage(0, 3, [4, 5], [3, 1]), stage(3, 4, [7, 6])),
        ),
    ),
    ParallelPlan(3, (replica(6, stage(0, 4, [3, 2, 1])),), standby=(0, 4, 5, 6, 7)),
    ParallelPlan(4, (replica(3, stage(0, 4, [5, 0])), replica(3, stage(0, 1, [1]), stage(1, 4, [2, 3, 4, 6])))),
)


def values(held: Layout, rank: int) -> ShardSet:
    """State whose every element is known: each tensor of the whole model numbered, moments offset."""
    shards = {}
    names = list(held.tensors)
    for name, interval in held.shards(rank).items():
        spec = held.tensors[name]
        numbered = torch.arange(torch.Size(spec.shape).numel(), dtype=torch.float64).view(spec.shape)
        part = narrow(held, name, numbered, interval) + 1e6 * names.index(name)
        shards[name] = Shard(part, part + 0.25, part + 0.5)
    return ShardSet(held, rank, MappingProxyType(shards))


def assert_known(held: ShardSet) -> None:
    """These are the shards that `values` says."""
    expected = values(held.layout, held.rank)
    assert list(held.shards) == list(expected.shards)
    for name, shard in held.shards.items():
        for mine, theirs in zip(shard.state, expected.shards[name].state, strict=True):
            assert torch.equal(mine, theirs), name
