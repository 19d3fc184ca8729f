"""Bytes that a change of plan moves, without listing the moves: cheap for ten thousand devices.

Equal to what `transfers` moves, tensor by tensor, as long as every slice has a live holder (tested).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod

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


@dataclass(frozen=True, eq=False)
class _Held:
    """Where a rank is, in units of each split. One object per kind of place in a plan, so that it is its own key."""

    layers: tuple[int, int]
    embeds: bool
    last: bool
    units: tuple[tuple[int, int], ...]
    """In the order of `Split`."""


class Mover:
    """What changes from one plan to others move."""

    def __init__(self, old: ParallelPlan, model: ModelSpec) -> None:
        self._model = model
        self._before = _held(old, model)
        self._sizes = _sizes(model)

    def to(self, new: ParallelPlan) -> Moving:
        """What the ranks of `new` must receive if those of the old plan that are in `new` kept their shards."""
        before = self._before
        pairs = Counter((before.get(rank), now) for rank, now in _held(new, self._model).items())
        received = [(n, elements) for (then, now), n in pairs.items() if (elements := self._received(then, now))]
        return Moving(
            sum(n * elements for n, elements in received),
            max((elements for _, elements in received), default=0),
            sum(n for n, _ in received),
        )

    def _received(self, then: _Held | None, now: _Held) -> int:
        """Elements that a rank lacks."""
        layers = now.layers[1] - now.layers[0]
        if then is None:
            return sum(
                (stop - start) * (layer * layers + embedding * now.embeds + head * now.last)
                for (start, stop), (layer, embedding, head) in zip(now.units, self._sizes, strict=True)
            )
        kept_layers = _overlap(then.layers, now.layers)
        kept_embedding, kept_head = now.embeds and then.embeds, now.last and then.last
        elements = 0
        for old, new, (layer, embedding, head) in zip(then.units, now.units, self._sizes, strict=True):
            units = new[1] - new[0]
            common = _overlap(old, new)
            elements += layer * (layers * units - kept_layers * common)
            elements += embedding * (now.embeds * units - kept_embedding * common)
            elements += head * (now.last * units - kept_head * common)
        return elements


def moving(old: ParallelPlan, new: ParallelPlan, model: ModelSpec) -> Moving:
    """`Mover.to`, for one change."""
    return Mover(old, model).to(new)


def _held(plan: ParallelPlan, model: ModelSpec) -> dict[int, _Held]:
    found: dict[int, _Held] = {}
    cuts: dict[tuple[int, ...], list[tuple[tuple[int, int], ...]]] = {}
    places: dict[tuple[int, int, bool, bool, tuple[int, ...]], list[_Held]] = {}
    for replica in plan.replicas:
        end = len(replica.stages) - 1
        for s, stage in enumerate(replica.stages):
            last = s == end
            embeds = s == 0 or (last and model.tied_embeddings)
            key = stage.layer_start, stage.layer_stop, embeds, last, stage.weights
            if key not in places:
                if stage.weights not in cuts:
                    cuts[stage.weights] = _cut(stage, model)
                places[key] = [_Held(key[:2], embeds, last, units) for units in cuts[stage.weights]]
            found.update(zip(stage.ranks, places[key], strict=True))
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


@lru_cache(maxsize=64)
def _sizes(model: ModelSpec) -> tuple[tuple[int, int, int], ...]:
    """[split]: elements of one unit of a layer, of the embedding, of the head."""
    return tuple(
        (_elements(model, 0, split), _elements(model, EMBEDDING, split), _elements(model, HEAD, split))
        for split in Split
    )


def _elements(model: ModelSpec, part: int, split: Split) -> int:
    return sum(prod(t.shape) // t.num_units for t in model.tensors if t.layer == part and t.split is split)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))
