"""Bytes that a change of plan moves, without listing the moves: cheap for ten thousand devices.

Equal to what `transfers` moves, tensor by tensor (tested).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from resihp_plan.model import EMBEDDING, HEAD, ModelSpec
from resihp_plan.owners import Cut, Owned, Span, cut, unit_elements
from resihp_plan.plan import ParallelPlan


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

    layers: Span
    embeds: bool
    last: bool
    units: Cut


class Mover:
    """What changes from one plan to others move."""

    def __init__(self, old: ParallelPlan, model: ModelSpec, lost: Sequence[Owned] = ()) -> None:
        """`lost`: parts of the old plan that nobody holds any more. They do not move."""
        self._model, self._lost = model, lost
        self._before = _held(old, model)
        self._sizes = tuple(zip(*(unit_elements(model, part) for part in (0, EMBEDDING, HEAD)), strict=True))

    def to(self, new: ParallelPlan) -> Moving:
        """What the ranks of `new` must receive if those of the old plan that are in `new` kept their shards."""
        before = self._before
        pairs = Counter((before.get(rank), now) for rank, now in _held(new, self._model).items())
        received = [
            (n, elements)
            for (then, now), n in pairs.items()
            if (elements := self._received(then, now) - self._missing(now))
        ]
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

    def _missing(self, now: _Held) -> int:
        """Elements that it should have, and nobody can send."""
        elements = 0
        for piece in self._lost:
            has = {EMBEDDING: now.embeds, HEAD: now.last}.get(piece.part)
            layers = _overlap((piece.part, piece.part + piece.num_layers), now.layers) if has is None else has
            units = _overlap(piece.span, now.units[piece.split])
            elements += layers * units * piece.size
        return elements


def moving(old: ParallelPlan, new: ParallelPlan, model: ModelSpec) -> Moving:
    """`Mover.to`, for one change."""
    return Mover(old, model).to(new)


def _held(plan: ParallelPlan, model: ModelSpec) -> dict[int, _Held]:
    found: dict[int, _Held] = {}
    cuts: dict[tuple[int, ...], list[Cut]] = {}
    places: dict[tuple[int, int, bool, bool, tuple[int, ...]], list[_Held]] = {}
    for replica in plan.replicas:
        end = len(replica.stages) - 1
        for s, stage in enumerate(replica.stages):
            last = s == end
            embeds = s == 0 or (last and model.tied_embeddings)
            key = stage.layer_start, stage.layer_stop, embeds, last, stage.weights
            if key not in places:
                if stage.weights not in cuts:
                    cuts[stage.weights] = cut(stage, model)
                places[key] = [_Held(key[:2], embeds, last, units) for units in cuts[stage.weights]]
            found.update(zip(stage.ranks, places[key], strict=True))
    return found


def _overlap(a: Span, b: Span) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))
