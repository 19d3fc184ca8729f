"""Bytes that a change of plan moves, without listing the moves: cheap for ten thousand devices.

Equal to what `transfers` moves, tensor by tensor, as long as every slice has a live holder (tested).
"""

from __future__ import annotations

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
    units: dict[Split, tuple[int, int]]

    def embeds(self, model: ModelSpec) -> bool:
        return self.first or (self.last and model.tied_embeddings)


def moving(old: ParallelPlan, new: ParallelPlan, model: ModelSpec) -> Moving:
    """What the ranks of `new` must receive if those of `old` that are in `new` kept their shards."""
    before, after = _held(old, model), _held(new, model)
    whole = {
        part: {s: _elements(model, part, s) for s in Split} for part in (EMBEDDING, 0, HEAD)
    }  # elements per unit of a split
    received = []
    for rank, now in after.items():
        then = before.get(rank)
        if now == then:
            continue
        elements = 0
        for split, (start, stop) in now.units.items():
            common = 0 if then is None else _overlap(then.units[split], (start, stop))
            layers = now.layers[1] - now.layers[0]
            kept_layers = 0 if then is None else _overlap(then.layers, now.layers)
            elements += whole[0][split] * (layers * (stop - start) - kept_layers * common)
            for part, here, there in (
                (EMBEDDING, now.embeds(model), then is not None and then.embeds(model)),
                (HEAD, now.last, then is not None and then.last),
            ):
                if here:
                    elements += whole[part][split] * (stop - start - (common if there else 0))
        if elements:
            received.append(elements)
    return Moving(sum(received), max(received, default=0), len(received))


def _held(plan: ParallelPlan, model: ModelSpec) -> dict[int, _Held]:
    found: dict[int, _Held] = {}
    cuts: dict[tuple[int, ...], list[dict[Split, tuple[int, int]]]] = {}
    for replica in plan.replicas:
        last = len(replica.stages) - 1
        for s, stage in enumerate(replica.stages):
            if stage.weights not in cuts:
                cuts[stage.weights] = _cut(stage, model)
            for rank, units in zip(stage.ranks, cuts[stage.weights], strict=True):
                found[rank] = _Held((stage.layer_start, stage.layer_stop), s == 0, s == last, units)
    return found


def _cut(stage: StagePlan, model: ModelSpec) -> list[dict[Split, tuple[int, int]]]:
    found: list[dict[Split, tuple[int, int]]] = [{} for _ in stage.ranks]
    for split in Split:
        counts = unit_shares(stage, model, split)
        stops = counts if split is Split.REPLICATED else tuple(accumulate(counts))
        for t, (count, stop) in enumerate(zip(counts, stops, strict=True)):
            found[t][split] = (stop - count, stop)
    return found


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
