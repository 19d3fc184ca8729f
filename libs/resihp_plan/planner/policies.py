"""Policies by name, for comparison and ablation: what each would make of a healthy plan and the devices' speeds.

Every policy is planned anew from the healthy plan, gets the same tuned layers, the same cost model and the best of the
same schedules. All times are those of programs; units that are rerouted or migrated run under the list schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from resihp_plan.cluster import Cluster, Health
from resihp_plan.cost import CostModel
from resihp_plan.memory import MemoryModel
from resihp_plan.plan import ParallelPlan, Schedule
from resihp_plan.planner import baselines
from resihp_plan.planner.effort import Effort, Switches
from resihp_plan.planner.search import nodes_of, search
from resihp_plan.planner.shape import Shape
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import GroupMaker
from resihp_plan.workload import Workload


class Policy(StrEnum):
    """Names; sources and simplifications in each member's text."""

    STATIC = "static"
    """No mitigation: the plan stays; a lost device ends the job."""
    RESTART = "restart"
    """Checkpoint and restart on as many full replicas as intact TP groups make; slow devices stay in use."""
    RECYCLE = "recycle"
    """ReCycle (SOSP 2024, arXiv 2405.14009): micro-batches of a damaged TP group go evenly to the same stage of other
    replicas; ends when no replica has the stage. Simplified: a list schedule in place of the MILP's, no staggered
    optimizer; split backward where it is among the schedules."""
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
    (best of three rules), units migrated between replicas (best of Algorithm 1 with delta 0, 1, 2 and of quotas)."""
    RESIHP = "resihp"
    """This project's search (`plan_change`), without the costs of changing."""


@dataclass(frozen=True)
class Outcome:
    """An iteration under a policy."""

    step_s: float | None
    """None: the policy cannot go on."""
    shape: Shape | None = None


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
    schedules: tuple[Schedule, ...] | None = None
    """Everybody's choice; None: the healthy plan's family."""

    @property
    def allowed(self) -> tuple[Schedule, ...]:
        return self.healthy.schedule.family if self.schedules is None else self.schedules

    def space(self, health: Health | None, schedule: Schedule | None = None, **options: bool) -> Space:
        """A fresh search space at these speeds; `options` of `GroupMaker`."""
        speeds = self.cluster.speeds(health or {})
        maker = GroupMaker(self.cost, self.workload.micro_batch, speeds, self.memory, **options)
        return Space(maker, self.workload, schedule or self.allowed[0])


def evaluate(policy: Policy, arena: Arena, health: Health) -> Outcome:
    """What `policy` makes of `arena.healthy` at these speeds (0: lost), under the best schedule. Deterministic."""
    if policy is Policy.RESIHP:
        return _resihp(arena, health)
    found = Outcome(None)
    for schedule in arena.allowed:
        found = _faster(found, _proposed(policy, arena, arena.space(health, schedule)))
    return found


def _proposed(policy: Policy, arena: Arena, space: Space) -> Outcome:
    """The fastest of the policy's shapes. Those that exchange units are simulated only where a lower bound says that
    they may be."""
    best = Outcome(None)

    def hopeful(seconds: float) -> bool:
        return best.step_s is None or seconds < best.step_s

    shapes = _PROPOSALS[policy](arena, space, hopeful)
    for shape in sorted((s for s in shapes if s is not None), key=lambda s: _bound_s(space, s)):
        if hopeful(_bound_s(space, shape)) and space.fits(shape):
            best = _faster(best, Outcome(space.step_s(shape), shape))
    return best


def _bound_s(space: Space, shape: Shape) -> float:
    return space.least_s(shape) if shape.migrations else 0.0


def _faster(a: Outcome, b: Outcome) -> Outcome:
    return b if b.step_s is not None and (a.step_s is None or b.step_s < a.step_s) else a


Hopeful = Callable[[float], bool]
Proposals = Iterable[Shape | None]


def _static(arena: Arena, space: Space, _: Hopeful) -> Proposals:
    return [baselines.static(arena.healthy, space)]


def _restart(arena: Arena, space: Space, _: Hopeful) -> Proposals:
    """Where nobody is lost, nothing is done."""
    stay = baselines.static(arena.healthy, space)
    return [stay if stay is not None else baselines.restart(arena.healthy, space)]


def _greyhound(arena: Arena, space: Space, _: Hopeful) -> Proposals:
    levelled = baselines.static(arena.healthy, space, by_speed=True)
    return [levelled if levelled is not None else baselines.restart(arena.healthy, space)]


def _recycle(arena: Arena, space: Space, _: Hopeful) -> Proposals:
    return [baselines.recycle(arena.healthy, space)]


def _s_recycle(arena: Arena, space: Space, _: Hopeful) -> Proposals:
    return [baselines.recycle(arena.healthy, space), baselines.recycle(arena.healthy, space, by_speed=True)]


def _oobleck(arena: Arena, space: Space, _: Hopeful) -> Proposals:
    return [baselines.oobleck(arena.healthy, space, arena.space(None, space.schedule))]


def _s_oobleck(arena: Arena, space: Space, _: Hopeful) -> Proposals:
    return [baselines.oobleck(arena.healthy, space, arena.space(None, space.schedule), by_speed=True)]


def _resihp_paper(arena: Arena, space: Space, hopeful: Hopeful) -> Iterator[Shape]:
    return baselines.resihp_paper(arena.healthy, space, hopeful)


_PROPOSALS: Mapping[Policy, Callable[[Arena, Space, Hopeful], Proposals]] = {
    Policy.STATIC: _static,
    Policy.RESTART: _restart,
    Policy.RECYCLE: _recycle,
    Policy.OOBLECK: _oobleck,
    Policy.GREYHOUND: _greyhound,
    Policy.ADAPTRA: _restart,
    Policy.S_RECYCLE: _s_recycle,
    Policy.S_OOBLECK: _s_oobleck,
    Policy.RESIHP_PAPER: _resihp_paper,
}


def _resihp(arena: Arena, health: Health) -> Outcome:
    switches = arena.switches
    space = replace(
        arena.space(health, uneven=switches.uneven_tp, powers_of_two=not switches.uneven_tp),
        own_layers=switches.layers,
        own_counts=switches.counts,
        layers_like=baselines.layers_of(arena.healthy)[0],
    )
    usable = [r for r in arena.cluster.ranks if health.get(r, 1.0) > 0.0]
    if not usable:
        return Outcome(None)
    nodes = nodes_of(arena.healthy, usable, arena.cluster.node_of, spans=False)
    effort = arena.effort or Effort.for_devices(len(arena.cluster.ranks))
    found = search(
        arena.healthy,
        nodes,
        space,
        random.Random(0),
        effort,
        switches,
        nominal=arena.space(None),
        schedules=arena.allowed if switches.schedule else (),
    )
    return Outcome(found[0].step_s, found[0].shape) if found else Outcome(None)
