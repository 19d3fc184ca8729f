"""Tensor-parallel groups as the search sees them: members, shares, and seconds per layer.

The seconds are those of `CostModel.stage_cost` for one layer, with and without the head; the search treats a stage as
`layers * layer_s + head_s`, which is exact while one member stays the slowest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from resihp_plan.cluster import Health, speed_of
from resihp_plan.cost import CostModel
from resihp_plan.layout import shares, unit_shares
from resihp_plan.memory import MemberRoom, MemoryModel
from resihp_plan.model import EMBEDDING, HEAD, ModelSpec, Split
from resihp_plan.plan import StagePlan
from resihp_plan.planner.level import level
from resihp_plan.workload import MicroBatchWork

Weights = tuple[int, ...]
_Facts = tuple[int, float, float, float, tuple[MemberRoom, ...], float]
"""What follows `weights` in a `TpGroup`."""


@dataclass(frozen=True)
class TpGroup:
    """Members in TP-index order with their weights."""

    ranks: tuple[int, ...]
    weights: Weights
    kind: int
    """Groups of one maker that have the same number are equal in all of what follows, and in their size."""
    layer_s: float = field(compare=False)
    """Forward and backward of one typical micro-batch through one layer."""
    head_s: float = field(compare=False)
    """What the head adds."""
    share: float = field(compare=False)
    """Largest fraction of a layer's parameters that a member holds."""
    rooms: tuple[MemberRoom, ...] = field(compare=False)
    """Of members with a memory limit, without repetition."""
    link: float = field(compare=False, default=1.0)
    """Relative bandwidth of the member with the slowest way out."""

    def max_layers(self, in_flight: int, late: int, num_ends: int) -> int:
        """Layers that fit into every member's memory (`MemberRoom.layers`)."""
        return min((room.layers(in_flight, late, num_ends) for room in self.rooms), default=10**9)


class GroupMaker:
    """Makes the fastest groups out of given devices. Remembers what it worked out, by speeds."""

    def __init__(
        self,
        cost: CostModel,
        work: MicroBatchWork,
        health: Health | None,
        memory: MemoryModel | None,
        *,
        uneven: bool = True,
        powers_of_two: bool = False,
    ) -> None:
        """`uneven`: shares may follow speeds; `powers_of_two`: only such degrees (paper, Eq. 4)."""
        self.cost, self.work, self.health, self.memory = cost, work, health, memory
        self.uneven, self.powers_of_two = uneven, powers_of_two
        self._lines: dict[tuple[Weights, tuple[float, ...]], tuple[float, float]] = {}
        self._best: dict[tuple[float, ...], tuple[tuple[int, ...], Weights] | None] = {}
        self._kinds: dict[object, int] = {}
        self._known: dict[object, _Facts | None] = {}
        self._shares: dict[Weights, tuple[float, ...]] = {}
        self._rooms: dict[tuple[Weights, tuple[int | None, ...]], tuple[MemberRoom, ...]] = {}

    def speed(self, rank: int) -> float:
        return speed_of(rank, self.health)

    def is_up(self, rank: int) -> bool:
        return (self.health or {}).get(rank, 1.0) > 0.0

    def given(self, ranks: Sequence[int], weights: Sequence[int]) -> TpGroup | None:
        """The group with exactly these weights; None if the model has no unit for somebody."""
        members, shares_ = tuple(ranks), tuple(weights)
        limit_of = self.memory.limit_of if self.memory is not None else {}
        link = self.cost.link(members)
        limits = tuple(limit_of.get(rank) for rank in members)
        key = shares_, tuple(self.speed(rank) for rank in members), limits, link
        if key not in self._known:
            self._known[key] = self._work_out(members, shares_, link)
        known = self._known[key]
        return None if known is None else TpGroup(members, shares_, *known)

    def _work_out(self, members: tuple[int, ...], weights: Weights, link: float) -> _Facts | None:
        if not _everybody_works(weights, self.cost.model):
            return None
        layer_s, head_s = self._line(members, weights)
        if weights not in self._shares:
            self._shares[weights] = _parameter_shares(weights, self.cost.model)
        held = self._shares[weights]
        rooms = self._rooms_of(members, weights, held)
        facts = len(members), layer_s, head_s, max(held), rooms, link
        return self._kinds.setdefault(facts, len(self._kinds)), *facts[1:]

    def best(self, ranks: Sequence[int], *, largest: bool = False) -> TpGroup | None:
        """The fastest group out of `ranks`; None for nobody.

        Top-k by speed for every k, even or speed-weighted; a smaller k only if it is faster. `largest`: as many as the
        model allows. Members are in ascending order of rank.
        """
        order = sorted(ranks, key=lambda r: (-self.speed(r), r))
        if not order:
            return None
        speeds = (*(self.speed(r) for r in order), float(largest))
        if speeds not in self._best:
            self._best[speeds] = self._choose(speeds[:-1], largest)
        found = self._best[speeds]
        if found is None:
            return None
        chosen = sorted(zip((order[i] for i in found[0]), found[1], strict=True))
        return self.given([r for r, _ in chosen], [w for _, w in chosen])

    def _choose(self, speeds: tuple[float, ...], largest: bool) -> tuple[tuple[int, ...], Weights] | None:
        best: tuple[float, tuple[int, ...], Weights] | None = None
        for k in range(len(speeds), 0, -1):
            if self.powers_of_two and k & (k - 1):
                continue
            for weights in self._weightings(speeds[:k]):
                seconds = sum(self._line_of(speeds[:k], weights))
                if best is None or seconds < best[0] * (1 - 1e-9):
                    best = (seconds, tuple(range(k)), weights)
            if largest and best is not None:
                break
        return None if best is None else best[1:]

    def _weightings(self, speeds: tuple[float, ...]) -> list[Weights]:
        even = (1,) * len(speeds)
        found = [even]
        if self.uneven and len(set(speeds)) > 1:
            found.append(tuple(max(1, round(100 * p)) for p in speeds))
            # Head groups are the coarse grain: their exact min-max shares, with everything else in proportion.
            heads = level([0.0] * len(speeds), [1.0 / p for p in speeds], self.cost.model.num_kv_heads, least=1)
            if heads is not None:  # nobody without one
                found.append(heads)
        return [w for w in dict.fromkeys(found) if _everybody_works(w, self.cost.model)]

    def _line(self, ranks: tuple[int, ...], weights: Weights) -> tuple[float, float]:
        return self._line_of(tuple(self.speed(r) for r in ranks), weights)

    def _line_of(self, speeds: tuple[float, ...], weights: Weights) -> tuple[float, float]:
        key = (weights, speeds)
        if key not in self._lines:
            stage = StagePlan(0, 1, tuple(range(len(weights))), weights)
            pace = [
                self.cost.stage_cost(stage, last=last, health=dict(enumerate(speeds)))
                .round_trip(self.work)
                .seconds(self.work)
                for last in (False, True)
            ]
            self._lines[key] = (pace[0], pace[1] - pace[0])
        return self._lines[key]

    def _rooms_of(self, ranks: tuple[int, ...], weights: Weights, held: tuple[float, ...]) -> tuple[MemberRoom, ...]:
        if self.memory is None:
            return ()
        key = weights, tuple(self.memory.limit_of.get(rank) for rank in ranks)
        if key not in self._rooms:
            stage = StagePlan(0, 1, ranks, weights)
            units = {s: unit_shares(stage, self.cost.model, s) for s in (Split.ATTENTION, Split.MLP, Split.VOCAB)}
            each = (
                self.memory.room(rank, held[t], {s: u[t] / sum(u) for s, u in units.items()})
                for t, rank in enumerate(ranks)
            )
            self._rooms[key] = tuple(
                dict.fromkeys(room for room in each if room is not None)
            )  # equal ones say the same
        return self._rooms[key]


@lru_cache(maxsize=64)
def layer_elements(model: ModelSpec) -> int:
    """Parameters of one layer."""
    return sum(_size(t.shape) for t in model.tensors if t.layer == 0)


@lru_cache(maxsize=64)
def vocabulary_elements(model: ModelSpec) -> int:
    """Parameters of the embedding or of the head, the larger of the two."""
    return max(sum(_size(t.shape) for t in model.tensors if t.layer == part) for part in (EMBEDDING, HEAD))


def _size(shape: tuple[int, ...]) -> int:
    found = 1
    for n in shape:
        found *= n
    return found


def _parameter_shares(weights: Weights, model: ModelSpec) -> tuple[float, ...]:
    """Per member: fraction of a layer's parameters."""
    sizes: Mapping[Split, int] = {
        split: sum(_size(t.shape) for t in model.tensors if t.layer == 0 and t.split is split) for split in Split
    }
    total = sum(sizes.values())
    stage = StagePlan(0, 1, tuple(range(len(weights))), weights)
    units = {s: unit_shares(stage, model, s) for s in (Split.ATTENTION, Split.MLP)}
    return tuple(
        (sizes[Split.REPLICATED] + sum(sizes[s] * u[t] / sum(u) for s, u in units.items())) / total
        for t in range(len(weights))
    )


def _everybody_works(weights: Weights, model: ModelSpec) -> bool:
    """A member may be without head group or vocabulary block, but not without MLP blocks (`validate`)."""
    units = model.num_units(Split.MLP)
    return len(weights) <= units and min(shares(units, weights)) > 0
