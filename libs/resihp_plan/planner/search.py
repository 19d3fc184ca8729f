"""Search over groups, their places, layers and micro-batches (design: section 8).

From the cheapest change to the largest: groupings of each affected node (coordinate descent), assignments of all groups
to replicas and stages, fewer replicas, random exchanges; the best few are then polished by exact times. What other
systems would do, exchanged units and other schedules come last (`extras`).
Deterministic: the random generator is passed in, ties are ordered.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from resihp_plan.plan import ParallelPlan, Schedule
from resihp_plan.planner import assign
from resihp_plan.planner.board import IMPROVEMENT, Board
from resihp_plan.planner.effort import Effort, Switches
from resihp_plan.planner.extras import Found, exchanges, reschedule, rivals
from resihp_plan.planner.options import Grouping, Node, Slot, groupings
from resihp_plan.planner.polish import polish
from resihp_plan.planner.shape import Pipeline
from resihp_plan.planner.small import every_order
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import TpGroup


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
    *,
    nominal: Space,
    schedules: Sequence[Schedule] = (),
) -> list[Found]:
    """Everything worth comparing, fastest first; empty if nothing fits into memory.

    `nominal`: the space of healthy devices; `schedules`: others that may be taken than the space's.
    """
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
    results = _finish(found, space, effort, switches)
    if switches.regroup and switches.layers and switches.counts:
        orders = every_order([placed[s] for s in sorted(placed)], space, replicas)
        for shape in [polish(space, s) for s in orders] if switches.polish else orders:
            results.append(Found("every order", shape, space.step_s(shape)))
    homes = [_at_home(plan, placed), _at_home(plan, {s: g for o in options for s, g in o[0].items()})]
    for schedule in dict.fromkeys((space.schedule, *schedules)):
        here = space.under(schedule)
        if switches.rivals:
            results += rivals(plan, here, nominal.under(schedule))
        for groups in homes if switches.migration else ():
            best_s = min((f.step_s for f in results), default=float("inf"))
            results += exchanges(plan, groups, here, best_s, effort, with_rivals=switches.rivals)
    results += reschedule(sorted(results, key=_step_s), schedules, space, effort, switches)
    return sorted(results, key=_step_s)


def _step_s(found: Found) -> float:
    return found.step_s


def _at_home(plan: ParallelPlan, placed: Grouping) -> list[list[TpGroup | None]]:
    return [[placed.get((a, s)) for s in range(len(rep.stages))] for a, rep in enumerate(plan.replicas)]


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
