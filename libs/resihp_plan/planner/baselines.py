"""What other systems would make of a plan and the devices' speeds, as shapes: rivals in comparisons, and candidates of
our own search, which therefore is never worse than they are.

Sources and simplifications are in `policies.Policy`. A TP group that lost all its members, or that its policy drops, is
kept as a place without work (`_empty`): the plan's form needs one, nothing runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

from resihp_plan.plan import Migration, ParallelPlan
from resihp_plan.planner.level import level
from resihp_plan.planner.migrate import algorithm_1, by_quota
from resihp_plan.planner.polish import polish
from resihp_plan.planner.shape import Layers, Pipeline, Shape
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import GroupMaker, TpGroup

Groups = list[list[TpGroup | None]]
"""[replica][stage] of the plan; None where nobody works."""
DELTAS = (0, 1, 2)
"""Of the paper's Algorithm 1, which does not state one; its example has 0."""
MANY_UNITS = 2048
"""From here on only the first of them is tried: each takes seconds."""


def intact(plan: ParallelPlan, maker: GroupMaker) -> Groups:
    """The plan's groups; None where a member is lost."""
    return [
        [maker.given(st.ranks, st.weights) if all(maker.is_up(r) for r in st.ranks) else None for st in rep.stages]
        for rep in plan.replicas
    ]


def layers_of(plan: ParallelPlan) -> list[Layers]:
    return [tuple(st.layer_stop - st.layer_start for st in rep.stages) for rep in plan.replicas]


def static(plan: ParallelPlan, space: Space, *, by_speed: bool = False) -> Shape | None:
    """Everything stays where it is; None if a member is lost. `by_speed`: but for the micro-batches (Greyhound)."""
    groups = intact(plan, space.maker)
    if any(g is None for rep in groups for g in rep):
        return None
    return _with_counts(space, [tuple(g for g in rep if g) for rep in groups], layers_of(plan), by_speed=by_speed)


def restart(plan: ParallelPlan, space: Space) -> Shape | None:
    """As many full replicas as the intact groups make."""
    left = [g for rep in intact(plan, space.maker) for g in rep if g is not None]
    layers = layers_of(plan)[0]
    number = min(len(left) // len(layers), space.workload.num_micro_batches)
    if number == 0:
        return None
    pipelines = [tuple(left[a * len(layers) : (a + 1) * len(layers)]) for a in range(number)]
    return _with_counts(space, pipelines, [layers] * number, by_speed=False)


def oobleck(plan: ParallelPlan, space: Space, nominal: Space, *, by_speed: bool = False) -> Shape | None:
    """Damaged groups are dropped; shorter replicas get layers, and unless `by_speed` micro-batches, as if healthy.

    `nominal`: the space of healthy devices.
    """
    kept: list[Pipeline] = []
    layers: list[Layers] = []
    counted = []
    for rep, old in zip(intact(plan, space.maker), layers_of(plan), strict=True):
        pipeline = tuple(g for g in rep if g is not None)
        healthy = tuple(g for x in pipeline if (g := nominal.maker.given(x.ranks, x.weights)) is not None)
        worth = nominal.worth(healthy) if healthy else None
        if worth is not None:  # else: too few devices for the model
            kept.append(pipeline)
            layers.append(old if len(pipeline) == len(old) else worth.layers)
            counted.append(worth)
    if not kept:
        return None
    if by_speed:
        return _with_counts(space, kept, layers, by_speed=True)
    return Shape(tuple(kept), tuple(layers), nominal.counts(counted), space.schedule)


def recycle(plan: ParallelPlan, space: Space, *, by_speed: bool = False) -> Shape | None:
    """Micro-batches of a damaged group go evenly to the same stage of other replicas; None if no replica has it.
    `by_speed`: micro-batches per replica by Greyhound's integer redistribution, as a descent."""
    groups = intact(plan, space.maker)
    layers = layers_of(plan)
    if len(set(layers)) > 1 or any(all(rep[s] is None for rep in groups) for s in range(len(layers[0]))):
        return None
    replicas, stages = range(len(groups)), range(len(layers[0]))
    unit_s = [space.unit_s(_filled(groups, a), layers[0]) for a in replicas]
    alive = [[a for a in replicas if groups[a][s] is not None] for s in stages]

    def bound_s(counts: Sequence[int]) -> float:
        load: dict[tuple[int, int], float] = {}
        for s in stages:
            lost = sum(counts) - sum(counts[a] for a in alive[s])
            load.update(((a, s), counts[a] + lost / len(alive[s])) for a in alive[s])
        return space.bound_s(unit_s, load, space.schedule)

    counts = _even(space.workload.num_micro_batches, len(groups))
    return _rerouted(space, groups, layers[0], _descend(counts, bound_s) if by_speed else counts)


def _descend(counts: tuple[int, ...], seconds: Callable[[Sequence[int]], float]) -> tuple[int, ...]:
    """One micro-batch after the other to another replica, as long as that is faster."""
    best_s, replicas = seconds(counts), range(len(counts))
    while True:
        trials = [
            tuple(c + (a == y) - (a == x) for a, c in enumerate(counts))
            for x in replicas
            for y in replicas
            if x != y and counts[x] > 0
        ]
        best = min(trials, key=seconds, default=counts)
        if seconds(best) >= best_s * (1 - 1e-9):
            return counts
        counts, best_s = best, seconds(best)


def mechanisms(
    plan: ParallelPlan, space: Space, *, exclusion: bool, repartition: bool, migration: bool
) -> Iterator[Shape]:
    """ReCycle with some of ResiHP's mechanisms (the paper's figure 11); with none of them it is `recycle`."""
    groups = excluded(plan, space.maker) if exclusion else intact(plan, space.maker)
    tuned = layers_of(plan)[0]
    if any(all(rep[s] is None for rep in groups) for s in range(len(tuned))):
        return
    divisions = _common_layers(space, groups, tuned) if repartition else [tuned]
    if migration:
        yield from (shape for shape in exchanging(space, groups, tuned) if shape.layers[0] in divisions)
        return
    counts = _even(space.workload.num_micro_batches, len(groups))
    for layers in divisions:
        held = _holding(space, groups, layers)
        if all(any(rep[s] is not None for rep in held) for s in range(len(layers))):
            yield _rerouted(space, held, layers, counts)


def excluded(plan: ParallelPlan, maker: GroupMaker) -> Groups:
    """Power-of-two exclusion in every group (paper, Eq. 4)."""
    return [[_excluded(maker, [r for r in st.ranks if maker.is_up(r)]) for st in rep.stages] for rep in plan.replicas]


def resihp_paper(
    plan: ParallelPlan, space: Space, hopeful: Callable[[float], bool] = lambda _: True
) -> Iterator[Shape]:
    """ResiHP's candidates: power-of-two exclusion per group, one of three layer divisions for all replicas, units by
    quota or by Algorithm 1. `hopeful`: as in `exchanging`."""
    groups = excluded(plan, space.maker)
    units = space.workload.num_micro_batches * len(plan.replicas[0].stages)
    yield from exchanging(space, groups, layers_of(plan)[0], hopeful, DELTAS if units <= MANY_UNITS else DELTAS[:1])


def exchanging(
    space: Space,
    groups: Groups,
    tuned: Layers,
    hopeful: Callable[[float], bool] = lambda _: True,
    deltas: Sequence[int] = DELTAS,
) -> Iterator[Shape]:
    """Shapes whose replicas all have the same layers and exchange units: every layer rule, quotas and Algorithm 1 with
    these deltas. `hopeful(seconds)`: whether shapes that take at least so long are wanted."""
    if any(len(rep) != len(tuned) for rep in groups) or any(
        all(rep[s] is None for rep in groups) for s in range(len(tuned))
    ):
        return
    counts = _even(space.workload.num_micro_batches, len(groups))
    for layers in _common_layers(space, groups, tuned):
        held = _holding(space, groups, layers)
        if any(all(rep[s] is None for rep in held) for s in range(len(layers))):
            continue
        pipelines = tuple(_filled(held, a) for a in range(len(held)))
        shape = Shape(pipelines, (layers,) * len(groups), tuple(counts), space.schedule)
        unit_s = [space.unit_s(p, layers) for p in pipelines]
        if not hopeful(space.bound_s(unit_s, _ideal(unit_s, sum(counts)), space.schedule) + space.sync_s(shape)):
            continue
        found = [by_quota(unit_s, counts), by_quota(unit_s, counts, sparing=True)]
        found += [algorithm_1(shape.plan(0, ()), unit_s, space.cost.backward_ratio, d) for d in deltas]
        yield from (replace(shape, migrations=m) for m in dict.fromkeys(found) if m is not None)


def _ideal(unit_s: Sequence[Sequence[float]], total: int) -> dict[tuple[int, int], float]:
    """Units per (replica, stage) if they could be divided: no exchange is faster."""
    found: dict[tuple[int, int], float] = {}
    for s in range(len(unit_s[0])):
        speeds = [1.0 / row[s] for row in unit_s]  # 0 where nobody works
        found.update(((a, s), total * speed / sum(speeds)) for a, speed in enumerate(speeds) if speed)
    return found


def _holding(space: Space, groups: Groups, layers: Layers) -> Groups:
    """Without the groups whose memory does not hold their layers: others execute their units."""
    return [
        [
            None if g is None or space.room((g,) * len(layers), s, space.schedule, mixed=True) < layers[s] else g
            for s, g in enumerate(rep)
        ]
        for rep in groups
    ]


def _with_counts(space: Space, pipelines: Sequence[Pipeline], layers: Sequence[Layers], *, by_speed: bool) -> Shape:
    """Micro-batches even, or by speed."""
    even = _even(space.workload.num_micro_batches, len(pipelines))
    shape = Shape(tuple(pipelines), tuple(layers), even, space.schedule)
    if not by_speed:
        return shape
    worths = [space.worth_of(p, n) for p, n in zip(pipelines, layers, strict=True)]
    return polish(replace(space, own_layers=False), replace(shape, counts=space.counts(worths)), rounds=32)


def _rerouted(space: Space, groups: Groups, layers: Layers, counts: Sequence[int]) -> Shape:
    """Units of places without a group, evenly to the other replicas' places of that stage."""
    moved = []
    for s in range(len(layers)):
        alive = [a for a, rep in enumerate(groups) if rep[s] is not None]
        lost = [(a, m) for a, n in enumerate(counts) if groups[a][s] is None for m in range(n)]
        moved += [Migration(a, s, m, alive[i % len(alive)]) for i, (a, m) in enumerate(lost)]
    pipelines = tuple(_filled(groups, a) for a in range(len(groups)))
    return Shape(pipelines, (layers,) * len(groups), tuple(counts), space.schedule, tuple(moved))


def _filled(groups: Groups, a: int) -> Pipeline:
    """The replica's groups, with a place without work where there is none."""
    return tuple(
        g if g is not None else _empty(next(x for rep in groups if (x := rep[s]) is not None), a, s)
        for s, g in enumerate(groups[a])
    )


def _empty(like: TpGroup, a: int, s: int) -> TpGroup:
    """Ranks below zero belong to nobody, and no memory limits them."""
    return replace(like, ranks=(-1 - (a << 16) - s,), weights=(1,), layer_s=inf, head_s=inf, kind=-1, rooms=())


def _excluded(maker: GroupMaker, ranks: Sequence[int]) -> TpGroup | None:
    """argmax over k = 2^q of k * (k-th largest p); all of them in an even group."""
    order = sorted(ranks, key=lambda r: (-maker.speed(r), r))
    degrees = [k for k in (1, 2, 4, 8, 16) if k <= len(order)]
    if not degrees:
        return None
    k = max(degrees, key=lambda k: (k * maker.speed(order[k - 1]), k))
    return maker.given(sorted(order[:k]), (1,) * k)


def _common_layers(space: Space, groups: Groups, tuned: Layers) -> list[Layers]:
    """As in the plan; by the stage's speed over all replicas; by its slowest group."""
    num_layers, last = space.cost.model.num_layers, len(tuned) - 1
    columns = [[g for rep in groups if (g := rep[s]) is not None] for s in range(last + 1)]
    by_sum = [len(groups) / sum(1.0 / g.layer_s for g in column) for column in columns]
    by_slowest = [max(g.layer_s for g in column) for column in columns]
    head = [0.0] * last + [min(g.head_s for g in columns[last])]
    caps = [
        min(space.room((g,) * len(tuned), s, space.schedule, mixed=True) for g in column)
        for s, column in enumerate(columns)
    ]
    divisions = [tuned, *(level(head, each, num_layers, least=1, caps=caps) for each in (by_sum, by_slowest))]
    return list(dict.fromkeys(d for d in divisions if d is not None))


def _even(total: int, parts: int) -> tuple[int, ...]:
    return tuple(total // parts + (i < total % parts) for i in range(parts))
