"""Ways to give the groups of all nodes to replicas and stages."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping

from resihp_plan.planner.options import Slot
from resihp_plan.planner.shape import Pipeline
from resihp_plan.planner.tpgroups import TpGroup

Placed = Mapping[Slot, TpGroup]
MAX_DROPPED = 2
"""Replicas that are given up at most, to make the others longer."""


def home(placed: Placed, num_replicas: int) -> list[Pipeline]:
    """Everybody where its slot is."""
    found: list[list[TpGroup]] = [[] for _ in range(num_replicas)]
    for slot in sorted(placed):
        found[slot[0]].append(placed[slot])
    return [tuple(p) for p in found]


def columns(placed: Placed, num_replicas: int) -> list[Pipeline]:
    """Within each stage, the fastest groups go to the first replicas: slow ones share a replica, and whoever keeps its
    stage moves no state if the layers agree."""
    by_stage: dict[int, list[Slot]] = {}
    for slot in sorted(placed):
        by_stage.setdefault(slot[1], []).append(slot)
    moved: dict[Slot, TpGroup] = {}
    for slots in by_stage.values():
        groups = sorted((placed[s] for s in slots), key=lambda g: (g.layer_s, g.ranks))
        moved.update(zip(slots, groups, strict=True))
    return home(moved, num_replicas)


def by_speed(placed: Placed, num_replicas: int) -> list[Pipeline]:
    """All groups by speed, cut into replicas of about equal length."""
    order = sorted(placed, key=lambda s: (placed[s].layer_s, s))
    bounds = [len(order) * i // num_replicas for i in range(num_replicas + 1)]
    parts = [sorted(order[a:b], key=lambda s: (s[1], s[0])) for a, b in itertools.pairwise(bounds)]
    return [tuple(placed[s] for s in part) for part in parts]


def levelled(placed: Placed, num_replicas: int) -> list[Pipeline]:
    """Fastest group first, each to the replica that has the least speed so far (longest processing time first)."""
    order = sorted(placed, key=lambda s: (placed[s].layer_s, s))
    parts: list[list[Slot]] = [[] for _ in range(num_replicas)]
    most = -(-len(order) // num_replicas)
    open_ = [(0.0, a) for a in range(num_replicas)]
    for slot in order:
        speed, a = heapq.heappop(open_)
        parts[a].append(slot)
        if len(parts[a]) < most:
            heapq.heappush(open_, (speed + 1.0 / placed[slot].layer_s, a))
    return [tuple(placed[s] for s in sorted(part, key=lambda s: (s[1], s[0]))) for part in parts]


def fewer_replicas(pipelines: list[Pipeline]) -> Iterator[tuple[int, list[Pipeline]]]:
    """One or two replicas given up, the weakest first; their groups lengthen the weakest of the others."""

    def speed(p: Pipeline) -> float:
        return sum(1.0 / g.layer_s for g in p)

    kept = sorted((p for p in pipelines if p), key=lambda p: (-speed(p), [g.ranks for g in p]))
    for dropped in range(1, min(MAX_DROPPED, len(kept) - 1) + 1):
        free = kept.pop()
        for group in sorted(free, key=lambda g: (g.layer_s, g.ranks)):
            a = min(range(len(kept)), key=lambda a: (speed(kept[a]), a))
            kept[a] = (*kept[a], group)
        yield dropped, list(kept)
