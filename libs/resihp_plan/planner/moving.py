"""Bytes that a change of plan moves, without listing the moves: cheap for ten thousand devices.

Equal to what `transfers` moves, tensor by tensor, as long as every slice has a live holder (tested).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from resihp_plan.layout import unit_shares
from resihp_plan.model import EMBEDDING, HEAD, ModelSpec, Split
from resihp_plan.plan import ParallelPlan, StagePlan


@dataclass(frozen=True)
class Moving:
    """Elements that ranks receive."""

    total: int
    most: int
    """By one rank: it determines the time."""
    receivers: int
    """Ranks that receive anything."""


@dataclass(frozen=True)
class _Held:
    """Where a rank is, in units of each split."""

    layers: tuple[int, int]
    first: bool
    last: bool
    units: tuple[tuple[int, int], ...]
    """In the order of `Split`."""

    def embeds(self, model: ModelSpec) -> bool:
        return self.first or (self.last and model.tied_embeddings)


def moving(old: ParallelPlan, new: ParallelPlan, model: ModelSpec) -> Moving:
    """What the ranks of `new` must receive if those of `old` that are in `new` kept their shards."""
    before = _held(old, model)
    pairs = Counter((before.get(rank), now) for rank, now in _held(new, model).items())
    received = [(n, elements) for (then, now), n in pairs.items() if (elements := _received(then, now, model))]
    return Moving(
        sum(n * elements for n, elements in received),
        max((elements for _, elements in received), default=0),
        sum(n for n, _ in received),
    )


def _received(then: _Held | None, now: _Held, model: ModelSpec) -> int:
    """Elements that a rank lacks."""
    if then == now:
        return 0
    elements = 0
    layers = now.layers[1] - now.layers[0]
    kept_layers = 0 if then is None else _overlap(then.layers, now.layers)
    for i, (split, (start, stop)) in enumerate(zip(Split, now.units, strict=True)):
        common = 0 if then is None else _overlap(then.units[i], (start, stop))
        elements += _elements(model, 0, split) * (layers * (stop - start) - kept_layers * common)
        for part, here, there in (
            (EMBEDDING, now.embeds(model), then is not None and then.embeds(model)),
            (HEAD, now.last, then is not None and then.last),
        ):
            if here:
                elements += _elements(model, part, split) * (stop - start - (common if there else 0))
    return elements


def _held(plan: ParallelPlan, model: ModelSpec) -> dict[int, _Held]:
    found: dict[int, _Held] = {}
    cuts: dict[tuple[int, ...], list[tuple[tuple[int, int], ...]]] = {}
    for replica in plan.replicas:
        last = len(replica.stages) - 1
        for s, stage in enumerate(replica.stages):
            if stage.weights not in cuts:
                cuts[stage.weights] = _cut(stage, model)
            for rank, units in zip(stage.ranks, cuts[stage.weights], strict=True):
                found[rank] = _Held((stage.layer_start, stage.layer_stop), s == 0, s == last, units)
    return found


def _cut(stage: StagePlan, model: ModelSpec) -> list[tuple[tuple[int, int], ...]]:
    """[member]: its units of every split."""
    found: list[list[tuple[int, int]]] = [[] for _ in stage.ranks]
    for split in Split:
        counts = unit_shares(stage, model, split)
        stops = counts if split is Split.REPLICATED else tuple(accumulate(counts))
        for t, (count, stop) in enumerate(zip(counts, stops, strict=True)):
            found[t].append((stop - count, stop))
    return [tuple(each) for each in found]


@lru_cache(maxsize=256)
def _elements(model: ModelSpec, part: int, split: Split) -> int:
    found = 0
    for tensor in model.tensors:
        if tensor.layer == part and tensor.split is split:
            size = 1
            for n in tensor.shape:
                size *= n
            found += size // tensor.num_units
    return found


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))
