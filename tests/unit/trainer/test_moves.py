"""State moves, gradient buckets and pipeline edges between any layouts, on groups of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from resihp_plan import (
    GroupKind,
    GroupSpec,
    ParallelPlan,
    Place,
    gradient_buckets,
    groups,
    layout,
    transfers,
)
from resihp_trainer.gradients import GradientSync
from resihp_trainer.moves import Moved, move_state
from resihp_trainer.pipeline import Pipeline
from resihp_trainer.shards import ShardSet, narrow
from support.thread_groups import ThreadGroup, ThreadPending, run_ranks
from support.trainer_cases import SPEC, replica, stage
from support.trainer_state import PLANS, assert_known, values

WORLD = GroupSpec("world", GroupKind.WORLD, tuple(range(8)))


@pytest.mark.parametrize(("old", "new"), [*pairwise(PLANS), (PLANS[3], PLANS[0])])
def test_state_arrives_complete(old: ParallelPlan, new: ParallelPlan) -> None:
    before, after = layout(old, SPEC), layout(new, SPEC)
    moves = transfers(before, after, alive=old.world)
    assert not moves.missing

    def body(rank: int, found: Mapping[str, ThreadGroup]) -> Moved:
        mine = values(before, rank) if rank in old.world else None
        return move_state(mine, after, moves, found["world"], rank, torch.float64, lambda: None)

    for rank, moved in run_ranks([WORLD], body).items():
        assert moved.is_verified
        assert_known(moved.held)
        incoming = moves.incoming(rank)
        assert (moved.bytes_received > 0) == bool(incoming)


def test_what_stays_is_shared_and_what_is_cut_anew_is_not() -> None:
    before, after = layout(PLANS[0], SPEC), layout(PLANS[1], SPEC)
    moves = transfers(before, after, alive=PLANS[0].world)
    old = {rank: values(before, rank) for rank in PLANS[0].world}
    found = run_ranks(
        [WORLD], lambda rank, g: move_state(old[rank], after, moves, g["world"], rank, torch.float64, lambda: None)
    )
    shared = 0
    for rank, moved in found.items():
        for name, shard in moved.held.shards.items():
            stays = before.shards(rank).get(name) == after.shards(rank)[name]
            assert (name in old[rank].shards and shard is old[rank].shards[name]) == stays
            shared += stays
        assert_known(old[rank])
    assert shared


class CorruptingGroup:
    """Flips one bit of what arrives."""

    def __init__(self, group: ThreadGroup) -> None:
        self.ranks = group.ranks
        self._group = group

    def all_to_all(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> ThreadPending:
        pending = self._group.all_to_all(output, input, output_splits, input_splits)

        def finish() -> None:
            pending.wait()
            output[len(output) // 2] ^= 1

        return ThreadPending(finish)


def test_a_corrupted_packet_is_noticed() -> None:
    before, after = layout(PLANS[0], SPEC), layout(PLANS[1], SPEC)
    moves = transfers(before, after, alive=PLANS[0].world)

    def body(rank: int, found: Mapping[str, ThreadGroup]) -> Moved:
        group = CorruptingGroup(found["world"]) if rank == 3 else found["world"]
        return move_state(values(before, rank), after, moves, group, rank, torch.float64, lambda: None)  # type: ignore[arg-type]

    results = run_ranks([WORLD], body)
    assert [rank for rank, moved in results.items() if not moved.is_verified] == [3]


@dataclass(frozen=True)
class Synced:
    held: ShardSet
    sums: Mapping[str, Tensor]
    norm_sq: float


@pytest.mark.parametrize("plan", PLANS)
def test_gradients_are_summed_over_replicas(plan: ParallelPlan) -> None:
    """Replica a contributes (a + 1) times a known whole gradient; members of a TP group have equal copies of norms."""
    held = layout(plan, SPEC)
    torch.manual_seed(0)
    whole = {t.name: torch.randn(t.shape, dtype=torch.float64) for t in SPEC.tensors}

    def body(rank: int, found: Mapping[str, ThreadGroup]) -> Synced:
        mine = ShardSet.initial(held, rank, seed=0, dtype=torch.float64, tick=lambda: None)
        position = plan.position(rank)
        factor = position[0] + 1 if position else 0
        local = {n: narrow(held, n, whole[n], i).contiguous() * factor for n, i in held.shards(rank).items()}
        sync = GradientSync(mine, [b for b in gradient_buckets(plan, SPEC) if rank in b.owners], found)
        sync.launch(local)
        gradients = sync.finish(1)
        return Synced(mine, gradients.sums, gradients.norm_sq)

    results = run_ranks(groups(plan, SPEC), body)
    total = sum(range(1, len(plan.replicas) + 1))
    for rank, synced in results.items():
        for name, interval in held.shards(rank).items():
            torch.testing.assert_close(synced.sums[name], narrow(held, name, whole[name], interval) * total)
    norm_sq = sum(float((g * total).pow(2).sum()) for g in whole.values())
    assert sum(s.norm_sq for s in results.values()) == pytest.approx(norm_sq, rel=1e-12)
    for name in whole:  # all holders of an element have the same bits of it
        copies = [(rank, interval) for rank, interval in held.holders(name)]
        for (a, first), (b, second) in pairwise(copies):
            common = first.overlap(second)
            if len(common):
                one = results[a].held.piece(name, results[a].sums[name], common.start, common.stop)
                two = results[b].held.piece(name, results[b].sums[name], common.start, common.stop)
                assert torch.equal(one, two)


@pytest.mark.parametrize(("senders", "receivers"), list(product((1, 2, 3), repeat=2)))
@pytest.mark.parametrize("num_tokens", [1, 2, 7])
def test_pipeline_edges_of_any_degrees(senders: int, receivers: int, num_tokens: int) -> None:
    ranks = list(range(senders + receivers))
    plan = ParallelPlan(1, (replica(1, stage(0, 2, ranks[:senders]), stage(2, 4, ranks[senders:])),))
    x = torch.randn(num_tokens, 6, dtype=torch.float64)
    first, second = Place(0, 0), Place(0, 1)

    def body(rank: int, found: Mapping[str, ThreadGroup]) -> Tensor:
        tp = next((g for name, g in found.items() if name.startswith("tp/")), None)
        pipeline = Pipeline(plan, rank, found, tp, 6, torch.float64)
        if rank < senders:
            pipeline.send(x, first, second)
            back = pipeline.receive(num_tokens, first, second)
        else:
            back = pipeline.receive(num_tokens, second, first)
            pipeline.send(back * 2, second, first)
        pipeline.finish()
        return back

    for rank, arrived in run_ranks(groups(plan, SPEC), body).items():
        assert torch.equal(arrived, x * 2 if rank < senders else x)
