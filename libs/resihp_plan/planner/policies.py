"""Policies by name, for comparison and ablation: what each would make of a healthy plan and the devices' speeds.

Every policy is planned anew from the healthy plan, gets the same tuned layers and the same cost model. Rerouting and
migration of single (stage, micro-batch) units are scored by a *lower* bound of their time over all schedules, so those
policies look better than they are, never worse.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from resihp_plan.cluster import Cluster, Health
from resihp_plan.cost import CostModel
from resihp_plan.memory import MemoryModel
from resihp_plan.plan import ParallelPlan
from resihp_plan.planner.level import level
from resihp_plan.planner.polish import polish
from resihp_plan.planner.search import Effort, Switches, nodes_of, search
from resihp_plan.planner.space import Layers, Pipeline, Shape, Space
from resihp_plan.planner.tpgroups import GroupMaker, TpGroup
from resihp_plan.workload import Workload


class Policy(StrEnum):
    """Names; sources and simplifications in each member's text."""

    STATIC = "static"
    """No mitigation: the plan stays; a lost device ends the job."""
    RESTART = "restart"
    """Checkpoint and restart on as many full replicas as intact TP groups make; slow devices stay in use."""
    RECYCLE = "recycle"
    """ReCycle (SOSP 2024, arXiv 2405.14009): micro-batches of a damaged TP group go evenly to the same stage of other
    replicas; ends when no replica has the stage. Lower bound of its time; split backward as the common schedule."""
    OOBLECK = "oobleck"
    """Oobleck (SOSP 2023): damaged TP groups are dropped, replicas become shorter pipelines (templates: layers for
    healthy devices), the batch follows their healthy speed. Any length that fits into memory counts as a template."""
    GREYHOUND = "greyhound"
    """Greyhound (ATC 2025, arXiv 2410.12588), strategy S2: micro-batches per replica by speed. A loss: restart."""
    ADAPTRA = "adaptra"
    """Adaptra (arXiv 2504.19232): adapts the pipeline schedule to slow links. Against slow computation it keeps plan
    and counts, so it equals `static` here. A loss: restart."""
    S_RECYCLE = "s-recycle"
    """ReCycle with Greyhound's micro-batches by speed, as strengthened in the ResiHP paper."""
    S_OOBLECK = "s-oobleck"
    """Oobleck with Greyhound's micro-batches by speed."""
    RESIHP_PAPER = "resihp-paper"
    """ResiHP (arXiv 2605.06374): power-of-two TP exclusion by k min p (Eq. 4), one layer division for all replicas
    (best of three rules), units of a stage migrated between replicas by speed (lower bound of its time)."""
    RESIHP = "resihp"
    """This project's search (`plan_change`), without the costs of changing."""


@dataclass(frozen=True)
class Outcome:
    """An iteration under a policy."""

    step_s: float | None
    """None: the policy cannot go on."""
    shape: Shape | None = None
    """Without migrated units."""


@dataclass(frozen=True)
class Arena:
    """Where policies compete: a healthy plan and how it is scored."""

    healthy: ParallelPlan
    cluster: Cluster
    workload: Workload
    cost: CostModel
    memory: MemoryModel | None = None
    switches: Switches = field(default_factory=Switches)
    effort: Effort | None = None

    def space(self, health: Health | None, **options: bool) -> Space:
        """A fresh search space at these speeds; `options` of `GroupMaker`."""
        speeds = self.cluster.speeds(health or {})
        maker = GroupMaker(self.cost, self.workload.micro_batch, speeds, self.memory, **options)
        return Space(maker, self.workload, self.healthy.schedule)

    @property
    def layers(self) -> Layers:
        return tuple(st.layer_stop - st.layer_start for st in self.healthy.replicas[0].stages)


def evaluate(policy: Policy, arena: Arena, health: Health) -> Outcome:
    """What `policy` makes of `arena.healthy` at these speeds (0: lost). Deterministic."""
    if all(health.get(r, 1.0) == 1.0 for r in arena.cluster.ranks) and policy is not Policy.RESIHP:
        return _static(arena, health)
    outcome = _POLICIES[policy](arena, health)
    if outcome.step_s is None or outcome.shape is not None:
        return outcome
    healthy_s = _static(arena, {}).step_s
    assert healthy_s is not None  # nobody is lost
    return Outcome(max(outcome.step_s, healthy_s))  # a lower bound; faults make nothing faster


def _members(arena: Arena, health: Health) -> list[list[TpGroup | None]]:
    """[replica][stage]: the healthy plan's group with even shares, None if it lost a member."""
    maker = arena.space(health).maker
    return [
        [
            None if any(health.get(r, 1.0) <= 0.0 for r in st.ranks) else maker.given(st.ranks, st.weights)
            for st in rep.stages
        ]
        for rep in arena.healthy.replicas
    ]


def _whole(groups: Sequence[Sequence[TpGroup | None]]) -> list[Pipeline]:
    return [tuple(g for g in rep if g is not None) for rep in groups]


def _scored(space: Space, pipelines: Sequence[Pipeline], layers: Sequence[Layers], *, by_speed: bool) -> Outcome:
    """Exact time; micro-batches even or by speed."""
    total = space.workload.num_micro_batches
    even = tuple(total // len(pipelines) + (a < total % len(pipelines)) for a in range(len(pipelines)))
    shape = Shape(tuple(pipelines), tuple(layers), even, space.schedule)
    if by_speed:
        worths = [space.worth_of(p, n) for p, n in zip(pipelines, layers, strict=True)]
        shape = replace(shape, counts=space.counts(worths))
        shape = polish(replace(space, own_layers=False), shape, rounds=32)
    return Outcome(space.step_s(shape), shape)


def _static(arena: Arena, health: Health) -> Outcome:
    groups = _members(arena, health)
    if any(g is None for rep in groups for g in rep):
        return Outcome(None)
    return _scored(arena.space(health), _whole(groups), [arena.layers] * len(groups), by_speed=False)


def _restart(arena: Arena, health: Health) -> Outcome:
    intact = [g for rep in _members(arena, health) for g in rep if g is not None]
    stages = len(arena.layers)
    replicas = len(intact) // stages
    if replicas == 0:
        return Outcome(None)
    pipelines = [tuple(intact[a * stages : (a + 1) * stages]) for a in range(replicas)]
    return _scored(arena.space(health), pipelines, [arena.layers] * replicas, by_speed=False)


def _greyhound(arena: Arena, health: Health) -> Outcome:
    groups = _members(arena, health)
    if any(g is None for rep in groups for g in rep):
        return _restart(arena, health)
    return _scored(arena.space(health), _whole(groups), [arena.layers] * len(groups), by_speed=True)


def _adaptra(arena: Arena, health: Health) -> Outcome:
    outcome = _static(arena, health)
    return _restart(arena, health) if outcome.step_s is None else outcome


def _recycle(arena: Arena, health: Health, *, by_speed: bool = False) -> Outcome:
    groups = _members(arena, health)
    stages = range(len(arena.layers))
    if any(all(rep[s] is None for rep in groups) for s in stages):
        return Outcome(None)
    space = arena.space(health)
    total, replicas = arena.workload.num_micro_batches, len(groups)
    counts = [total // replicas + (a < total % replicas) for a in range(replicas)]
    seconds = _rerouted_s(space, groups, arena.layers, counts)
    while by_speed:  # Greyhound's integer redistribution, by descent
        trials = [
            [c + (a == y) - (a == x) for a, c in enumerate(counts)]
            for x in range(replicas)
            for y in range(replicas)
            if x != y and counts[x] > 0
        ]
        best = min(trials, key=lambda c: _rerouted_s(space, groups, arena.layers, c), default=counts)
        better = _rerouted_s(space, groups, arena.layers, best)
        if better >= seconds * (1 - 1e-9):
            break
        counts, seconds = best, better
    return Outcome(seconds)


def _rerouted_s(
    space: Space, groups: Sequence[Sequence[TpGroup | None]], layers: Layers, counts: Sequence[int]
) -> float:
    """Units of a damaged group are spread evenly over the stage's other groups; lower bound of the time."""
    load: dict[tuple[int, int], float] = {}
    for s in range(len(layers)):
        alive = [a for a, rep in enumerate(groups) if rep[s] is not None]
        lost = sum(c for a, c in enumerate(counts) if a not in alive)
        for a in alive:
            load[a, s] = counts[a] + lost / len(alive)
    return _bound_s(space, groups, layers, load)


def _bound_s(
    space: Space,
    groups: Sequence[Sequence[TpGroup | None]],
    layers: Layers,
    load: Mapping[tuple[int, int], float],
) -> float:
    """No schedule is faster: a group starts after the stages before it and ends before their backward, with all of its
    units in between; and the slowest micro-batch passes all stages. Plus synchronisation."""
    last = len(layers) - 1

    def unit_s(a: int, s: int) -> float:
        group = groups[a][s]
        assert group is not None  # only groups that work have a load
        return group.layer_s * layers[s] + (group.head_s if s == last else 0.0)

    best = [min(unit_s(a, s) for a, rep in enumerate(groups) if rep[s] is not None) for s in range(last + 1)]
    longest = max(sum(best[:s]) + units * unit_s(a, s) for (a, s), units in load.items())
    any_shape = [tuple(g for g in rep if g is not None) for rep in groups]
    full = next((p for p in any_shape if len(p) == last + 1), None)
    sync = 0.0
    if full is not None:
        sync = space.sync_s(Shape((full,) * len(groups), (layers,) * len(groups), (1,) * len(groups), space.schedule))
    return max(longest, sum(best)) + sync


def _oobleck(arena: Arena, health: Health, *, by_speed: bool = False) -> Outcome:
    real, nominal = arena.space(health), arena.space(None)
    pipelines = [p for p in _whole(_members(arena, health)) if p]
    kept: list[Pipeline] = []
    layers: list[Layers] = []
    counted = []
    for pipeline in pipelines:
        healthy: list[TpGroup] = []
        for g in pipeline:
            group = nominal.maker.given(g.ranks, g.weights)
            assert group is not None  # it worked in the healthy plan
            healthy.append(group)
        worth = nominal.worth(tuple(healthy))
        if worth is not None:  # else: too few devices for the model
            kept.append(pipeline)
            layers.append(arena.layers if len(pipeline) == len(arena.layers) else worth.layers)
            counted.append(worth)
    if not kept:
        return Outcome(None)
    if by_speed:
        return _scored(real, kept, layers, by_speed=True)
    shape = Shape(tuple(kept), tuple(layers), nominal.counts(counted), real.schedule)
    return Outcome(real.step_s(shape), shape)


def _resihp_paper(arena: Arena, health: Health) -> Outcome:
    space = arena.space(health, uneven=False, powers_of_two=True)
    groups: list[list[TpGroup | None]] = [
        [_excluded(space.maker, [r for r in st.ranks if health.get(r, 1.0) > 0.0]) for st in rep.stages]
        for rep in arena.healthy.replicas
    ]
    stages = range(len(arena.layers))
    if any(all(rep[s] is None for rep in groups) for s in stages):
        return Outcome(None)
    total = arena.workload.num_micro_batches
    found = []
    for layers in _common_layers(space, groups, arena.layers):
        load: dict[tuple[int, int], float] = {}
        for s in stages:
            alive = [(a, g) for a, rep in enumerate(groups) if (g := rep[s]) is not None]
            counts = level([0.0] * len(alive), [g.layer_s for _, g in alive], total)
            assert counts is not None  # no least, no caps
            load.update({(a, s): float(c) for (a, _), c in zip(alive, counts, strict=True) if c})
        found.append(_bound_s(space, groups, layers, load))
    return Outcome(min(found))


def _excluded(maker: GroupMaker, ranks: Sequence[int]) -> TpGroup | None:
    """argmax over k = 2^q of k * (k-th largest p); all of them in an even group."""
    order = sorted(ranks, key=lambda r: (-maker.speed(r), r))
    degrees = [k for k in (1, 2, 4, 8, 16) if k <= len(order)]
    if not degrees:
        return None
    k = max(degrees, key=lambda k: (k * maker.speed(order[k - 1]), k))
    return maker.given(sorted(order[:k]), (1,) * k)


def _common_layers(space: Space, groups: Sequence[Sequence[TpGroup | None]], tuned: Layers) -> list[Layers]:
    """As in the healthy plan; by the stage's speed over all replicas; by its slowest group."""
    num_layers, last = space.cost.model.num_layers, len(tuned) - 1
    columns = [[g for rep in groups if (g := rep[s]) is not None] for s in range(last + 1)]
    by_sum = [len(groups) / sum(1.0 / g.layer_s for g in column) for column in columns]
    by_slowest = [max(g.layer_s for g in column) for column in columns]
    head = [0.0] * last + [min(g.head_s for g in columns[last])]
    divisions = [tuned, level(head, by_sum, num_layers, least=1), level(head, by_slowest, num_layers, least=1)]
    return [d for d in divisions if d is not None]


def _resihp(arena: Arena, health: Health) -> Outcome:
    switches = arena.switches
    space = replace(
        arena.space(health, uneven=switches.uneven_tp, powers_of_two=not switches.uneven_tp),
        own_layers=switches.layers,
        own_counts=switches.counts,
        layers_like=arena.layers,
    )
    usable = [r for r in arena.cluster.ranks if health.get(r, 1.0) > 0.0]
    if not usable:
        return Outcome(None)
    nodes = nodes_of(arena.healthy, usable, arena.cluster.node_of, spans=False)
    effort = arena.effort or Effort.for_devices(len(arena.cluster.ranks))
    found = search(arena.healthy, nodes, space, random.Random(0), effort, switches)
    return Outcome(found[0].step_s, found[0].shape) if found else Outcome(None)


_POLICIES: Mapping[Policy, Callable[[Arena, Health], Outcome]] = {
    Policy.STATIC: _static,
    Policy.RESTART: _restart,
    Policy.RECYCLE: _recycle,
    Policy.OOBLECK: _oobleck,
    Policy.GREYHOUND: _greyhound,
    Policy.ADAPTRA: _adaptra,
    Policy.S_RECYCLE: lambda arena, health: _recycle(arena, health, by_speed=True),
    Policy.S_OOBLECK: lambda arena, health: _oobleck(arena, health, by_speed=True),
    Policy.RESIHP_PAPER: _resihp_paper,
    Policy.RESIHP: _resihp,
}
