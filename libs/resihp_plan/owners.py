"""Who owns which part of the model, in units of each split: `layout` and `gradient_buckets` without listing tensors.

Layers between two cuts of any replica have the same owners, so they are one part; embedding and head are parts of their
own. Cheap for ten thousand devices, where a list of slices has millions.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from resihp_plan.layout import unit_shares
from resihp_plan.model import EMBEDDING, HEAD, ModelSpec, Split
from resihp_plan.plan import ParallelPlan, StagePlan

Span = tuple[int, int]
Cut = tuple[Span, ...]
"""Units of one member, in the order of `Split`."""


@dataclass(frozen=True)
class Owned:
    """Units [start, stop) of one split in one part of the model, and the ranks that hold them."""

    part: int
    """A first layer, `EMBEDDING` or `HEAD`."""
    num_layers: int
    """From the first one; 1 for embedding and head."""
    split: int
    """Index in `Split`."""
    span: Span
    size: int
    """Elements of one unit in one layer."""
    owners: tuple[int, ...]
    """Ascending, over all replicas."""

    @property
    def elements(self) -> int:
        return (self.span[1] - self.span[0]) * self.num_layers * self.size


def owned(plan: ParallelPlan, model: ModelSpec) -> Iterator[Owned]:
    """Everything that the model has, once, cut where its owners change. The plan must be valid for the model."""
    cuts: dict[tuple[int, ...], list[Cut]] = {}
    for replica in plan.replicas:
        for stage in replica.stages:
            if stage.weights not in cuts:
                cuts[stage.weights] = cut(stage, model)
    for part, num_layers, stages in _parts(plan, model):
        kinds = {stage.weights for stage in stages}
        known: dict[tuple[Span, ...], tuple[int, ...]] = {}
        for split, size in enumerate(unit_elements(model, part)):
            if not size:
                continue
            spans = {weights: [member[split] for member in cuts[weights]] for weights in kinds}
            points = sorted({p for each in spans.values() for span in each for p in span})
            for span in itertools.pairwise(points):
                holding = {w: _holding(each, span) for w, each in spans.items()}
                pattern = tuple(holding.values())
                if pattern not in known:
                    ranks = [r for st in stages for r in st.ranks[slice(*holding[st.weights])]]
                    known[pattern] = tuple(sorted(ranks))
                yield Owned(part, num_layers, split, span, size, known[pattern])


def volumes(plan: ParallelPlan, model: ModelSpec) -> dict[tuple[int, ...], int]:
    """Owners -> elements that they share: what `gradient_buckets` says, without the pieces, in its order."""
    found: dict[tuple[int, ...], int] = {}
    for piece in owned(plan, model):
        found[piece.owners] = found.get(piece.owners, 0) + piece.elements
    return dict(sorted(found.items()))


def lost(plan: ParallelPlan, model: ModelSpec, alive: Collection[int]) -> tuple[Owned, ...]:
    """What nobody in `alive` holds."""
    return tuple(piece for piece in owned(plan, model) if not any(rank in alive for rank in piece.owners))


def cut(stage: StagePlan, model: ModelSpec) -> list[Cut]:
    """[member]: its units of every split."""
    found: list[list[Span]] = [[] for _ in stage.ranks]
    for split in Split:
        counts = unit_shares(stage, model, split)
        stops = counts if split is Split.REPLICATED else tuple(itertools.accumulate(counts))
        for t, (count, stop) in enumerate(zip(counts, stops, strict=True)):
            found[t].append((stop - count, stop))
    return [tuple(each) for each in found]


def unit_elements(model: ModelSpec, part: int) -> tuple[int, ...]:
    """[split]: elements of one unit of a layer, of the embedding, of the head."""
    return _unit_elements(model, min(part, 0))  # layers are alike


@lru_cache(maxsize=64)
def _unit_elements(model: ModelSpec, part: int) -> tuple[int, ...]:
    return tuple(
        sum(prod(t.shape) // t.num_units for t in model.tensors if t.layer == part and t.split is split)
        for split in Split
    )


def _parts(plan: ParallelPlan, model: ModelSpec) -> Iterator[tuple[int, int, list[StagePlan]]]:
    """(part, layers in it, the stages that hold it)."""
    first = [r.stages[0] for r in plan.replicas]
    last = [r.stages[-1] for r in plan.replicas]
    twice = [r.stages[-1] for r in plan.replicas if len(r.stages) > 1] if model.tied_embeddings else []
    yield EMBEDDING, 1, [*first, *twice]
    starts = sorted({stage.layer_start for r in plan.replicas for stage in r.stages})
    at = [0] * len(plan.replicas)
    for start, stop in itertools.pairwise([*starts, model.num_layers]):
        for a, replica in enumerate(plan.replicas):
            at[a] += replica.stages[at[a]].layer_stop <= start
        yield start, stop - start, [r.stages[s] for r, s in zip(plan.replicas, at, strict=True)]
    yield HEAD, 1, last


def _holding(members: list[Span], span: Span) -> Span:
    """Which members hold it: neighbours, in TP order."""
    which = [t for t, (start, stop) in enumerate(members) if start <= span[0] and span[1] <= stop]
    return which[0], which[-1] + 1
