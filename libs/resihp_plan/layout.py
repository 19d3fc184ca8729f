"""Who holds which slice of which tensor: a pure function of a plan (design: section 5).

A tensor-parallel group shares out units (head groups, MLP blocks, vocabulary blocks) in proportion to its weights, in
TP-index order; so every shard is one contiguous interval along `TensorSpec.dim`. Replicated tensors are whole on every
member. The first stage also holds the embedding, the last one final norm and head (with one stage: both). A tied
embedding is the head as well, so the last stage holds it too; both copies get the sum of both gradients (`buckets`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType

from resihp_plan.model import EMBEDDING, HEAD, ModelSpec, Split, TensorSpec
from resihp_plan.plan import ParallelPlan, StagePlan


@dataclass(frozen=True, order=True, slots=True)
class Interval:
    """Half-open range [start, stop) of elements along a tensor's `dim`."""

    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def overlap(self, other: Interval) -> Interval:
        """The common part; empty (length 0) if there is none."""
        start = max(self.start, other.start)
        return Interval(start, max(start, min(self.stop, other.stop)))

    def covers(self, other: Interval) -> bool:
        return self.start <= other.start and other.stop <= self.stop


Holders = tuple[tuple[int, Interval], ...]
"""(rank, interval) of every holder of a tensor."""


def shares(num_units: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Share `num_units` out in proportion to `weights` by largest remainder; the sum is exact.

    Exact integer arithmetic; equal remainders go to the lower index, so every rank computes the same. With equal
    weights and at most `num_units` members everybody gets at least 1. A weight of 0 always gets 0.
    Raises ValueError for negative units or weights, and for weights whose sum is 0.

    >>> shares(4, (1, 1, 1))
    (2, 1, 1)
    >>> shares(22, (3, 1))
    (17, 5)
    """
    return _shares(num_units, tuple(weights))


@lru_cache(maxsize=4096)
def _shares(num_units: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    total = sum(weights)
    if num_units < 0 or total <= 0 or any(w < 0 for w in weights):
        raise ValueError(f"cannot share {num_units} units by weights {weights}: need units >= 0, weights >= 0, sum > 0")
    floors = [num_units * w // total for w in weights]
    left = num_units - sum(floors)
    # At most sum(remainders)/total members have a non-zero remainder left over, so a weight of 0 never gets a unit.
    order = sorted(range(len(weights)), key=lambda i: (-(num_units * weights[i] % total), i))
    for i in order[:left]:
        floors[i] += 1
    return tuple(floors)


def unit_shares(stage: StagePlan, model: ModelSpec, split: Split) -> tuple[int, ...]:
    """Units of `split` per TP index of `stage`; for replicated tensors everybody has the one unit."""
    if split is Split.REPLICATED:
        return (1,) * len(stage.ranks)
    return shares(model.num_units(split), stage.weights)


def tensors_of_stage(stage: StagePlan, model: ModelSpec, *, first: bool, last: bool) -> tuple[TensorSpec, ...]:
    """Tensors that a stage holds, in model order. `first`/`last`: its place in the replica's pipeline."""
    return tuple(
        t
        for t in model.tensors
        if stage.layer_start <= t.layer < stage.layer_stop
        or ((first or (last and model.tied_embeddings)) and t.layer == EMBEDDING)
        or (last and t.layer == HEAD)
    )


class Layout:
    """The shards of one plan. Build it with `layout`; it is immutable.

    `shards(rank)` maps tensor names to intervals, in model order. A member with no unit of a split has an empty
    interval there, so that a shard's shape is always defined; `holders` leaves empty intervals out.
    """

    def __init__(self, plan: ParallelPlan, model: ModelSpec) -> None:
        self.plan = plan
        self.model = model
        found: dict[int, dict[str, Interval]] = {}
        for replica in plan.replicas:
            last = len(replica.stages) - 1
            for s, stage in enumerate(replica.stages):
                specs = tensors_of_stage(stage, model, first=s == 0, last=s == last)
                intervals = {key: _intervals(stage, model, *key) for key in {(t.split, t.unit) for t in specs}}
                for t, rank in enumerate(stage.ranks):
                    found[rank] = {spec.name: intervals[spec.split, spec.unit][t] for spec in specs}
        self._shards: dict[int, Mapping[str, Interval]] = {r: MappingProxyType(m) for r, m in found.items()}

    def shards(self, rank: int) -> Mapping[str, Interval]:
        """Tensor name -> interval along `TensorSpec.dim`; empty mapping for ranks without a stage."""
        return self._shards.get(rank, MappingProxyType({}))

    def shape(self, rank: int, name: str) -> tuple[int, ...]:
        """Shape of the shard. Raises KeyError if `rank` holds nothing of `name`."""
        spec = self.tensors[name]
        shape = list(spec.shape)
        shape[spec.dim] = len(self._shards[rank][name])
        return tuple(shape)

    def holders(self, name: str) -> Holders:
        """Every (rank, interval) that holds a part of the tensor, ascending by rank, over all replicas."""
        return self._holders.get(name, ())

    @cached_property
    def tensors(self) -> Mapping[str, TensorSpec]:
        return MappingProxyType({t.name: t for t in self.model.tensors})

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that hold something, ascending."""
        return tuple(sorted(self._shards))

    @cached_property
    def _holders(self) -> Mapping[str, Holders]:
        found: dict[str, list[tuple[int, Interval]]] = {}
        for rank in self.ranks:
            for name, interval in self._shards[rank].items():
                if len(interval):
                    found.setdefault(name, []).append((rank, interval))
        return {name: tuple(pairs) for name, pairs in found.items()}

    def num_elements(self, rank: int) -> int:
        """Parameters that `rank` holds."""
        return sum(slice_elements(self.tensors[n], i) for n, i in self.shards(rank).items())


def layout(plan: ParallelPlan, model: ModelSpec) -> Layout:
    """The layout of `plan`. The plan must be valid for the model (`validate`)."""
    return Layout(plan, model)


def slice_elements(spec: TensorSpec, interval: Interval) -> int:
    """Elements of the slice of `spec` that covers `interval` of its `dim`."""
    return len(interval) * (prod(spec.shape) // spec.shape[spec.dim])


def refine(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Common refinement: the elementary intervals between all cut points that at least one interval covers."""
    whole = {i for i in intervals if len(i)}
    points = sorted({p for i in whole for p in (i.start, i.stop)})
    pieces = (Interval(a, b) for a, b in itertools.pairwise(points))
    return tuple(p for p in pieces if any(i.covers(p) for i in whole))


def owned_pieces(holders: Holders) -> tuple[tuple[Interval, tuple[int, ...]], ...]:
    """Common refinement of the holders' intervals, each piece with the ranks that hold it (as in `holders`)."""
    return tuple((p, tuple(rank for rank, i in holders if i.covers(p))) for p in refine(i for _, i in holders))


def _intervals(stage: StagePlan, model: ModelSpec, split: Split, unit: int) -> tuple[Interval, ...]:
    """Interval of each TP index for tensors with this split and grain; layers share the objects."""
    counts = unit_shares(stage, model, split)
    if split is Split.REPLICATED:
        return (Interval(0, unit),) * len(counts)
    stops = tuple(itertools.accumulate(counts))
    return tuple(Interval((stop - n) * unit, stop * unit) for stop, n in zip(stops, counts, strict=True))
