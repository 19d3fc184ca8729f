"""Gradient buckets: which slices are summed over which ranks, for replicas with unequal layouts (design: section 5).

Every tensor is cut at the common refinement of all replicas' intervals; pieces with the same owners share a bucket, so
one all-reduce per bucket makes all copies equal, bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from resihp_plan.layout import Holders, Interval, Layout, layout, owned_pieces, slice_elements
from resihp_plan.model import ModelSpec, Split, TensorSpec
from resihp_plan.plan import ParallelPlan


@dataclass(frozen=True, order=True)
class Piece:
    """The slice [start, stop) of a tensor along its `dim`."""

    tensor: str
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Pieces that the same ranks own. With one owner there is nothing to reduce."""

    owners: tuple[int, ...]
    """All ranks of all replicas that hold the pieces, ascending."""
    pieces: tuple[Piece, ...]
    """In model order, then by start: the order in which they are packed."""
    replica_of: tuple[int, ...]
    """Replica of each owner."""
    num_elements: int
    """Elements of all pieces together."""
    is_replicated: bool = False
    """Whether the pieces are of tensors that are whole on every member of a TP group."""

    def copies(self, rank: int) -> int:
        """How many ranks of that rank's own replica have the same gradient of these pieces: the members of its TP group
        for replicated tensors, else 1. First and last stage of a tied embedding have different parts of its gradient.

        Each is divided by this number before the sum. Raises ValueError for a rank that is no owner.
        """
        replica = self.replica_of[self.owners.index(rank)]
        return self.replica_of.count(replica) if self.is_replicated else 1

    @property
    def norm_weight(self) -> float:
        """Weight of each owner's squared norm of these pieces, so that the world's sum counts each piece once."""
        return 1.0 / len(self.owners)

    @cached_property
    def is_shared(self) -> bool:
        """Whether an all-reduce is needed."""
        return len(self.owners) > 1


def gradient_buckets(plan: ParallelPlan, model: ModelSpec) -> tuple[Bucket, ...]:
    """Every piece of every tensor once, grouped by owners, in one order for all ranks (ascending by owners)."""
    return buckets_of(layout(plan, model))


def buckets_of(held: Layout) -> tuple[Bucket, ...]:
    """`gradient_buckets` of a layout that is already at hand."""
    found: dict[tuple[int, ...], list[tuple[TensorSpec, Interval]]] = {}
    cut: dict[Holders, tuple[tuple[Interval, tuple[int, ...]], ...]] = {}  # most layers are cut alike
    for spec in held.model.tensors:
        holders = held.holders(spec.name)
        if holders not in cut:
            cut[holders] = owned_pieces(holders)
        for piece, owners in cut[holders]:
            found.setdefault(owners, []).append((spec, piece))
    return tuple(_bucket(held.plan, owners, found[owners]) for owners in sorted(found))


def _bucket(plan: ParallelPlan, owners: tuple[int, ...], slices: list[tuple[TensorSpec, Interval]]) -> Bucket:
    return Bucket(
        owners=owners,
        pieces=tuple(Piece(spec.name, i.start, i.stop) for spec, i in slices),
        replica_of=tuple(_replica(plan, rank) for rank in owners),
        num_elements=sum(slice_elements(spec, i) for spec, i in slices),
        # A norm's owners are all of one stage per replica, a tied embedding's of two: they share a bucket only where
        # every replica is a single rank, and then nothing is copied.
        is_replicated=any(spec.split is Split.REPLICATED for spec, _ in slices),
    )


def _replica(plan: ParallelPlan, rank: int) -> int:
    position = plan.position(rank)
    assert position is not None  # owners come from the plan's own layout
    return position[0]


def buckets_by_rank(buckets: tuple[Bucket, ...]) -> Mapping[int, tuple[Bucket, ...]]:
    """Rank -> its buckets, in the common order."""
    found: dict[int, list[Bucket]] = {}
    for bucket in buckets:
        for rank in bucket.owners:
            found.setdefault(rank, []).append(bucket)
    return {rank: tuple(found[rank]) for rank in sorted(found)}
