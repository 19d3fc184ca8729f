"""Who keeps a copy of whose state: a pure function of the plan and of where its ranks run (design: section 6.7).

A copy is of use if it does not die with all holders of the same slices. So a rank's guardian is, in this order of
importance: on another node; in a stage with no common layer; in the group's other members' part of a common layer; in
another replica; and has few wards itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

from resihp_plan.layout import Layout
from resihp_plan.plan import ParallelPlan


@dataclass(frozen=True, slots=True)
class _Place:
    """What a rank holds; a standby rank holds no layer and is in no replica (-1)."""

    node: str | None
    replica: int
    start: int
    stop: int
    low: float
    high: float
    """Its part of each tensor, as a range of fractions."""


_Order = tuple[bool, int, float, bool, int]
"""Same node, common layers, common part of them, same replica, wards so far: smaller is better."""


def guardians(plan: ParallelPlan, node_of: Mapping[int, str] | None = None) -> Mapping[int, int]:
    """Rank with a stage -> the rank of the plan's world that keeps a copy of its state; empty for a world of one.

    `node_of`: rank -> node; ranks that it does not name are alone on theirs. Deterministic; about linear in the number
    of ranks for regular plans, because a rank first tries what suited its predecessor.

    >>> from resihp_plan import ReplicaPlan, StagePlan
    >>> stages = lambda r: (StagePlan(0, 2, (r,), (1,)), StagePlan(2, 4, (r + 1,), (1,)))
    >>> plan = ParallelPlan(0, (ReplicaPlan(stages(0), 2), ReplicaPlan(stages(2), 2)))
    >>> dict(guardians(plan, {0: "a", 1: "a", 2: "b", 3: "b"}))
    {0: 3, 1: 2, 2: 1, 3: 0}
    """
    world, nodes = plan.world, node_of or {}
    places = [_place(plan, rank, nodes.get(rank)) for rank in world]
    wards = [0] * len(world)
    found: dict[int, int] = {}
    shift = 1
    for i, rank in enumerate(world):
        if plan.position(rank) is None or len(world) == 1:
            continue
        best: tuple[_Order, int] | None = None
        for distance in chain((shift,), range(1, len(world))):
            j = (i + distance) % len(world)
            order = _order(places[i], places[j], wards[j])
            if best is None or order < best[0]:
                best = order, distance
            if order == _IDEAL:
                break
        assert best is not None  # there is another rank
        shift = best[1]
        j = (i + shift) % len(world)
        wards[j] += 1
        found[rank] = world[j]
    return MappingProxyType(found)


def needed(guards: Mapping[int, int], held: Layout) -> Mapping[int, int]:
    """Those of `guards` whose guardian does not hold all slices of its ward anyway: its own copy would contain them.

    Empty for data parallelism alone: as long as a guardian lives, so does the newest state.
    """
    kept = {}
    for ward, guardian in guards.items():
        own = held.shards(guardian)
        if not all(name in own and own[name].covers(i) for name, i in held.shards(ward).items() if len(i)):
            kept[ward] = guardian
    return MappingProxyType(kept)


_IDEAL: _Order = (False, 0, 0.0, False, 0)


def _order(ward: _Place, other: _Place, num_wards: int) -> _Order:
    layers = max(0, min(ward.stop, other.stop) - max(ward.start, other.start))
    part = max(0.0, min(ward.high, other.high) - max(ward.low, other.low)) if layers else 0.0
    same_node = ward.node is not None and ward.node == other.node
    return same_node, layers, part, ward.replica == other.replica, num_wards


def _place(plan: ParallelPlan, rank: int, node: str | None) -> _Place:
    position = plan.position(rank)
    if position is None:
        return _Place(node, -1, 0, 0, 0.0, 0.0)
    replica, s, t = position
    stage = plan.replicas[replica].stages[s]
    total, before = sum(stage.weights), sum(stage.weights[:t])
    return _Place(
        node, replica, stage.layer_start, stage.layer_stop, before / total, (before + stage.weights[t]) / total
    )
