"""Values of the search: replicas with everything decided, and what estimates say about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resihp_plan.plan import Migration, ParallelPlan, ReplicaPlan, Schedule, StagePlan, known_speeds
from resihp_plan.planner.tpgroups import GroupMaker, TpGroup

Pipeline = tuple[TpGroup, ...]
"""The TP groups of a replica, in pipeline order."""
Layers = tuple[int, ...]


@dataclass(frozen=True)
class Worth:
    """Estimate of one replica."""

    layers: Layers
    fill_s: float
    """The first micro-batch, through and back."""
    pace_s: float
    """Each further one."""
    elements: float
    """Parameters of the rank that holds most; a slow way out makes them more."""


@dataclass(frozen=True)
class Level:
    """Sums over many replicas that give the continuous level of their micro-batches: ranks as well as exact counts, and
    a change of a few replicas is cheap."""

    number: int
    weight: float
    ahead: float
    elements: float

    @classmethod
    def of(cls, worths: Sequence[Worth]) -> Level:
        weight = sum([1.0 / w.pace_s for w in worths])
        ahead = sum([w.fill_s / w.pace_s - 1 for w in worths])
        return cls(len(worths), weight, ahead, max([w.elements for w in worths]))

    def changed(self, gone: Sequence[Worth], new: Sequence[Worth]) -> Level | None:
        """With others in place of some; None if the largest is gone and the sums do not say who is next."""
        most = max([w.elements for w in new], default=0.0)
        if any(w.elements >= self.elements for w in gone) and most < self.elements:
            return None
        return Level(
            self.number - len(gone) + len(new),
            self.weight + sum([1.0 / w.pace_s for w in new]) - sum([1.0 / w.pace_s for w in gone]),
            self.ahead + sum([w.fill_s / w.pace_s - 1 for w in new]) - sum([w.fill_s / w.pace_s - 1 for w in gone]),
            max(self.elements, most),
        )


@dataclass(frozen=True)
class Shape:
    """Replicas with everything decided; `plan` makes it a plan."""

    pipelines: tuple[Pipeline, ...]
    layers: tuple[Layers, ...]
    counts: tuple[int, ...]
    schedule: Schedule = Schedule.ONE_F_ONE_B
    migrations: tuple[Migration, ...] = ()

    @property
    def replicas(self) -> list[tuple[Pipeline, Layers, int]]:
        """Groups, layers and micro-batches of each."""
        return list(zip(self.pipelines, self.layers, self.counts, strict=True))

    @property
    def mixed(self) -> frozenset[int]:
        """Replicas that execute units of each other."""
        return frozenset(r for m in self.migrations for r in (m.replica, m.executor))

    def plan(self, epoch: int, standby: Sequence[int], speeds: Mapping[int, float] | None = None) -> ParallelPlan:
        """`speeds`: rank -> speed; those of working ranks go into the plan."""
        working = {r for p in self.pipelines for g in p for r in g.ranks} if speeds else set()
        return ParallelPlan(
            epoch=epoch,
            replicas=tuple(
                ReplicaPlan(_stages(p, n), m) for p, n, m in zip(self.pipelines, self.layers, self.counts, strict=True)
            ),
            migrations=self.migrations,
            standby=tuple(standby),
            schedule=self.schedule,
            speeds=known_speeds(speeds or {}, working),
        )


def _stages(pipeline: Pipeline, layers: Layers) -> tuple[StagePlan, ...]:
    stages, start = [], 0
    for group, n in zip(pipeline, layers, strict=True):
        stages.append(StagePlan(start, start + n, group.ranks, group.weights))
        start += n
    return tuple(stages)


def shape_of(plan: ParallelPlan, maker: GroupMaker) -> Shape | None:
    """The plan as the search sees it; None if it uses a stopped device, or weights that give somebody nothing."""
    pipelines = []
    for replica in plan.replicas:
        groups = []
        for stage in replica.stages:
            if any((maker.health or {}).get(r, 1.0) <= 0.0 for r in stage.ranks):
                return None
            group = maker.given(stage.ranks, stage.weights)
            if group is None:
                return None
            groups.append(group)
        pipelines.append(tuple(groups))
    layers = tuple(tuple(st.layer_stop - st.layer_start for st in r.stages) for r in plan.replicas)
    counts = tuple(r.num_micro_batches for r in plan.replicas)
    return Shape(tuple(pipelines), layers, counts, plan.schedule, plan.migrations)
