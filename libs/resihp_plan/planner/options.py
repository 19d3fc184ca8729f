"""Ways to group the usable devices of one node; a node's groups fill the pipeline positions ("slots") it has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from resihp_plan.planner.tpgroups import GroupMaker, TpGroup

Slot = tuple[int, int]
"""(replica, stage) of the plan from which the search starts."""
Grouping = dict[Slot, TpGroup]


@dataclass(frozen=True)
class Node:
    """A node with its slots, who works there now, and who could."""

    slots: tuple[Slot, ...]
    members: tuple[tuple[int, ...], ...]
    """Usable ranks of the current group of each slot."""
    idle: tuple[int, ...]
    """Usable ranks without a group."""

    @property
    def usable(self) -> tuple[int, ...]:
        return (*(r for m in self.members for r in m), *self.idle)


def groupings(node: Node, maker: GroupMaker, *, regroup: bool = True) -> list[Grouping]:
    """Without repetition, the current groups first: keep; idle ones join; sorted; snake; sizes n-2 and 2; merge."""
    by_speed = sorted(node.usable, key=lambda r: (-maker.speed(r), r))
    parts = len(node.slots)
    tried: list[Sequence[Sequence[int]]] = [node.members, _joined(node, maker)]
    if regroup and parts > 1 and len(by_speed) >= parts:
        tried.append(_chunks(by_speed, parts))
        tried.append([[r for j, r in enumerate(by_speed) if _snake(j, parts) == i] for i in range(parts)])
        if parts == 2 and len(by_speed) > 3:
            tried.append([by_speed[:-2], by_speed[-2:]])
            tried.append([by_speed[:-1], by_speed[-1:]])
    if regroup and parts > 1:
        tried += _merged(node, maker)
    found: dict[object, Grouping] = {}
    for groups in tried:
        grouping = {s: g for s, ranks in zip(node.slots, groups, strict=True) if (g := maker.best(ranks)) is not None}
        found.setdefault(tuple((s, g.ranks, g.weights) for s, g in grouping.items()), grouping)
    return list(found.values())


def _joined(node: Node, maker: GroupMaker) -> list[list[int]]:
    """Each idle device joins the group that has the least speed."""
    groups = [list(m) for m in node.members]
    for rank in sorted(node.idle, key=lambda r: (-maker.speed(r), r)):
        weakest = min(range(len(groups)), key=lambda i: (sum(maker.speed(r) for r in groups[i]), i))
        groups[weakest].append(rank)
    return groups


def _merged(node: Node, maker: GroupMaker) -> list[list[list[int]]]:
    """The two weakest groups (with the idle devices) become one, in either slot."""
    weight = [sum(maker.speed(r) for r in m) for m in node.members]
    order = sorted(range(len(node.slots)), key=lambda i: (weight[i], i))[:2]
    found = []
    for keep, drop in (order, order[::-1]):
        groups = [list(m) for m in node.members]
        groups[keep] = [*node.members[keep], *node.members[drop], *node.idle]
        groups[drop] = []
        found.append(groups)
    return found


def _chunks(ranks: Sequence[int], parts: int) -> list[Sequence[int]]:
    bounds = [len(ranks) * i // parts for i in range(parts + 1)]
    return [ranks[a:b] for a, b in itertools.pairwise(bounds)]


def _snake(position: int, parts: int) -> int:
    """0 1 2 2 1 0 0 1 2 ..."""
    turn = position % (2 * parts)
    return turn if turn < parts else 2 * parts - 1 - turn
