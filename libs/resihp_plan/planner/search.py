"""Search over groups, their places, layers and micro-batches (design: section 8).

From the cheapest change to the largest: groupings of each affected node (coordinate descent), assignments of all groups
to replicas and stages, fewer replicas, random exchanges; the best few are then polished by exact times.
Deterministic: the random generator is passed in, ties are ordered.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from resihp_plan.plan import ParallelPlan
from resihp_plan.planner import assign
from resihp_plan.planner.board import IMPROVEMENT, Board
from resihp_plan.planner.options import Grouping, Node, Slot, groupings
from resihp_plan.planner.polish import polish
from resihp_plan.planner.space import Pipeline, Shape, Space


@dataclass(frozen=True)
class Switches:
    """Ingredients of the search; each can be switched off for an ablation."""

    uneven_tp: bool = True
    """Shares by speed and any degree; otherwise powers of two, even (paper, Eq. 4)."""
    layers: bool = True
    """Layers per replica; otherwise every replica keeps the layers that it had."""
    counts: bool = True
    regroup: bool = True
    """Devices change groups inside a node, groups change places, replicas are given up."""
    polish: bool = True


@dataclass(frozen=True)
class Effort:
    """How long the search may look."""

    swaps: int = 200
    compared: int = 6
    """Arrangements whose exact time is worked out, best estimate first."""
    polished: int = 4
    polish_rounds: int = 12
    descents: int = 2

    @classmethod
    def for_devices(cls, num_devices: int) -> Effort:
        """Full effort up to 64 devices, less for more: what is left over is small there."""
        if num_devices <= 64:
            return cls(swaps=300)
        if num_devices <= 512:
            return cls(swaps=300, compared=5, polished=3, polish_rounds=8)
        return cls(swaps=150, compared=2, polished=1, polish_rounds=1, descents=1)


@dataclass(frozen=True)
class Found:
    """A shape with its exact step time; `name` says how it came about."""

    name: str
    shape: Shape
    step_s: float


def nodes_of(plan: ParallelPlan, usable: Collection[int], node_of: Mapping[int, str], *, spans: bool) -> list[Node]:
    """The nodes that hold slots of `plan`. `spans`: TP groups may have members on several nodes; all are one then."""
    slots: dict[str, list[Slot]] = defaultdict(list)
    members: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for a, replica in enumerate(plan.replicas):
        for s, stage in enumerate(replica.stages):
            node = "" if spans else node_of[stage.ranks[0]]
            slots[node].append((a, s))
            members[node].append(tuple(r for r in stage.ranks if r in usable))
    idle: dict[str, list[int]] = defaultdict(list)
    for rank in sorted(set(usable) - set(plan.active)):
        idle["" if spans else node_of[rank]].append(rank)
    return [Node(tuple(slots[n]), tuple(members[n]), tuple(idle[n])) for n in slots]


def search(
    plan: ParallelPlan,
    nodes: list[Node],
    space: Space,
    rng: random.Random,
    effort: Effort,
    switches: Switches,
) -> list[Found]:
    """Everything worth comparing, fastest first; empty if nothing fits into memory."""
    replicas = len(plan.replicas)
    options = [_options(plan, node, space, switches) for node in nodes]
    chosen = [o[0] for o in options]
    board = _descend(replicas, options, chosen, space, effort)
    placed = {s: g for grouping in chosen for s, g in grouping.items()}
    found: dict[tuple[Pipeline, ...], str] = {board.result: "groups"}
    if switches.regroup and replicas > 1:
        starts = [
            ("columns", assign.columns(placed, replicas)),
            ("by speed", assign.by_speed(placed, replicas)),
            ("levelled", assign.levelled(placed, replicas)),
            *((f"{n} replicas fewer", p) for n, p in assign.fewer_replicas(list(board.pipelines))),
        ]
        boards = [("groups", board), *((name, Board(space, p)) for name, p in starts)]
        boards.sort(key=lambda b: b[1].seconds)  # stable: the cheaper change first among equals
        for name, each in boards:
            found.setdefault(each.result, name)
        for name, each in boards[:2]:
            each.swap_at_random(rng, effort.swaps)
            found.setdefault(each.result, f"{name}, exchanges")
    return _finish(found, space, effort, switches)


def _options(plan: ParallelPlan, node: Node, space: Space, switches: Switches) -> list[Grouping]:
    """Just the current groups if nothing happened on the node."""
    current: Grouping = {}
    for slot, ranks in zip(node.slots, node.members, strict=True):
        stage = plan.replicas[slot[0]].stages[slot[1]]
        group = space.maker.given(ranks, stage.weights) if ranks == stage.ranks else space.maker.best(ranks)
        if group is not None:
            current[slot] = group
    speeds = {space.maker.speed(r) for r in node.usable}
    whole = not node.idle and all(
        m == plan.replicas[a].stages[s].ranks for (a, s), m in zip(node.slots, node.members, strict=True)
    )
    if whole and speeds <= {1.0}:
        return [current]
    found = groupings(node, space.maker, regroup=switches.regroup)
    return [current, *(g for g in found if g != current)]


def _descend(
    replicas: int, options: list[list[Grouping]], chosen: list[Grouping], space: Space, effort: Effort
) -> Board:
    """The best grouping of each affected node in turn, everybody at home. Changes `chosen`."""
    placed = {s: g for grouping in chosen for s, g in grouping.items()}
    slots_of: dict[int, list[Slot]] = defaultdict(list)
    for grouping_options in options:
        for slot in {s for o in grouping_options for s in o}:
            slots_of[slot[0]].append(slot)
    for slots in slots_of.values():
        slots.sort()
    board = Board(space, assign.home(placed, replicas))
    for _ in range(effort.descents):
        before = board.seconds
        for n, grouping_options in enumerate(options):
            for option in grouping_options:
                if option is chosen[n]:
                    continue
                trial = {**dict.fromkeys(chosen[n]), **option}
                hit = {slot[0] for slot in trial}
                changes = {
                    a: tuple(g for s in slots_of[a] if (g := trial.get(s, placed.get(s))) is not None) for a in hit
                }
                seconds = board.trial(changes)
                if seconds < board.seconds * (1 - IMPROVEMENT):
                    board.take(changes, seconds)
                    for s in chosen[n]:
                        del placed[s]
                    placed.update(option)
                    chosen[n] = option
        if board.seconds >= before:
            break
    return board


def _finish(found: Mapping[tuple[Pipeline, ...], str], space: Space, effort: Effort, switches: Switches) -> list[Found]:
    """Exact times; the best few are polished. All are kept: moving less state may be worth more than speed."""
    ranked = sorted(found, key=space.estimate_s)[: effort.compared]
    results: list[Found] = []
    for i, pipelines in enumerate(ranked):
        shape = space.shape(pipelines)
        if shape is None:
            continue
        results.append(Found(found[pipelines], shape, space.step_s(shape)))
        if switches.polish and i < effort.polished:
            better = polish(space, shape, rounds=effort.polish_rounds)
            if better != shape:
                results.append(Found(found[pipelines] + ", polished", better, space.step_s(better)))
    return sorted(results, key=lambda f: f.step_s)
