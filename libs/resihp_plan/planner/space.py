"""What an arrangement of TP groups is worth: quick estimates for the search, exact times for what it finds.

Estimate of a replica: `fill + (M - 1) * pace`, with the exact min-max division of its layers. Exact time: the
schedule's program under the cost model (`timeline`), plus the gradient synchronisation of the rank that holds most.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from resihp_plan.activations import held_units
from resihp_plan.cost import CostModel
from resihp_plan.edges import Place
from resihp_plan.memory import MemberRoom
from resihp_plan.plan import Schedule, StagePlan
from resihp_plan.planner.exchange import exchange_s
from resihp_plan.planner.level import level
from resihp_plan.planner.shape import Layers, Level, Pipeline, Shape, Worth
from resihp_plan.planner.timeline import timeline
from resihp_plan.planner.tpgroups import GroupMaker, TpGroup, layer_elements, vocabulary_elements
from resihp_plan.program import OpKind
from resihp_plan.workload import Workload

EXACT_COUNTS = 16
"""Up to so many replicas, estimates divide the micro-batches exactly; beyond, the continuous level ranks them."""


@dataclass
class Space:
    """Estimates and exact times for one planning; remembers both, by kinds of groups."""

    maker: GroupMaker
    workload: Workload
    schedule: Schedule = Schedule.ONE_F_ONE_B
    """Under which shapes are made; `search` then tries others."""
    own_layers: bool = True
    """Replicas may divide their layers differently (ablation: `layers_like`)."""
    own_counts: bool = True
    """Replicas may get different numbers of micro-batches."""
    layers_like: Layers | None = None
    _worth: dict[tuple[int, ...], Worth | None] = field(default_factory=dict)
    _exact: dict[tuple[Schedule, tuple[int, ...], Layers, int], tuple[float, ...]] = field(default_factory=dict)
    _stage: dict[tuple[int, int, bool, tuple[OpKind, ...]], tuple[float, ...]] = field(default_factory=dict)
    _room: dict[tuple[Schedule, int, int, int, bool], int] = field(default_factory=dict)
    _alike: dict[tuple[Schedule, tuple[MemberRoom, ...], int, int, bool], int] = field(default_factory=dict)
    _edge: dict[tuple[int, int, float], tuple[float, float]] = field(default_factory=dict)

    def at(self, maker: GroupMaker, schedule: Schedule) -> Space:
        """The same rules for groups of another maker; nothing is remembered."""
        return Space(maker, self.workload, schedule, self.own_layers, self.own_counts, self.layers_like)

    def under(self, schedule: Schedule) -> Space:
        """The same space for another schedule; exact times are shared."""
        return self if schedule is self.schedule else replace(self, schedule=schedule, _worth={})

    @property
    def cost(self) -> CostModel:
        return self.maker.cost

    def worth(self, pipeline: Pipeline) -> Worth | None:
        """None if it has more stages than layers, or does not fit into memory."""
        key = tuple(g.kind for g in pipeline)
        if key not in self._worth:
            self._worth[key] = self._work_out(pipeline)
        return self._worth[key]

    def _work_out(self, pipeline: Pipeline) -> Worth | None:
        last = len(pipeline) - 1
        head = [0.0] * last + [pipeline[last].head_s]
        each = [g.layer_s for g in pipeline]
        caps = None
        if self.maker.memory is not None:
            caps = [self.room(pipeline, s, self.schedule) for s in range(last + 1)]
        layers: Layers | None
        if not self.own_layers and self.layers_like is not None and len(self.layers_like) == len(pipeline):
            layers = self.layers_like
            if caps is not None and any(n > c for n, c in zip(layers, caps, strict=True)):
                layers = None
        else:
            layers = level(head, each, self.cost.model.num_layers, least=1, caps=caps)
        return None if layers is None else self.worth_of(pipeline, layers)

    def room(self, pipeline: Pipeline, stage: int, schedule: Schedule, *, mixed: bool = False) -> int:
        """Layers that the stage can hold under a schedule. `mixed`: in a replica that exchanges units."""
        group, num_stages = pipeline[stage], len(pipeline)
        key = schedule, group.kind, num_stages, stage, mixed
        if key not in self._room:
            alike = schedule, group.rooms, num_stages, stage, mixed  # many kinds have the same room
            if alike not in self._alike:
                whole, late = held_units(schedule, num_stages, stage, self.cost.model, mixed=mixed)
                self._alike[alike] = group.max_layers(whole, late, (stage == 0) + (stage == num_stages - 1))
            self._room[key] = self._alike[alike]
        return self._room[key]

    def fits(self, shape: Shape) -> bool:
        """Whether everybody's memory is large enough under the shape's schedule."""
        mixed = shape.mixed
        return self.maker.memory is None or all(
            n <= self.room(p, s, shape.schedule, mixed=a in mixed)
            for a, (p, layers) in enumerate(zip(shape.pipelines, shape.layers, strict=True))
            for s, n in enumerate(layers)
        )

    def worth_of(self, pipeline: Pipeline, layers: Layers) -> Worth:
        """The estimate with these layers."""
        seconds = self.unit_s(pipeline, layers)
        return Worth(
            layers, sum(seconds) + sum(map(sum, self._transfers(pipeline))), max(seconds), self._most(pipeline, layers)
        )

    def _most(self, pipeline: Pipeline, layers: Layers) -> float:
        per_layer, vocabulary = self._elements
        last = len(pipeline) - 1
        return max(
            [
                g.share * (n * per_layer + (vocabulary if s in (0, last) else 0)) / g.link
                for s, (g, n) in enumerate(zip(pipeline, layers, strict=True))
            ]
        )

    @cached_property
    def _elements(self) -> tuple[int, int]:
        return layer_elements(self.cost.model), vocabulary_elements(self.cost.model)

    def _transfers(self, pipeline: Pipeline) -> tuple[list[float], list[float]]:
        """Seconds per edge: activations, gradients. Unequal degrees make them differ."""
        edges = [self._both_ways_s(a, b) for a, b in itertools.pairwise(pipeline)]
        return [there for there, _ in edges], [back for _, back in edges]

    def _both_ways_s(self, sender: TpGroup, receiver: TpGroup) -> tuple[float, float]:
        key = len(sender.ranks), len(receiver.ranks), min(sender.link, receiver.link)
        if key not in self._edge:
            a, b, link = key
            tokens = self.workload.tokens_per_micro_batch
            self._edge[key] = self.cost.transfer_s(a, b, tokens, link), self.cost.transfer_s(b, a, tokens, link)
        return self._edge[key]

    def counts(self, worths: Sequence[Worth]) -> tuple[int, ...]:
        """Micro-batches per replica that level the estimates."""
        fixed = [w.fill_s - w.pace_s for w in worths]
        total = self.workload.num_micro_batches
        found = level(fixed, [w.pace_s for w in worths], total)
        assert found is not None  # no least, no caps
        return found if self.own_counts else _even(total, len(worths))

    def estimate_s(self, pipelines: Sequence[Pipeline]) -> float:
        """Seconds of an iteration with the best layers and counts; infinite if something does not fit."""
        worths = []
        for pipeline in pipelines:
            worth = self.worth(pipeline)
            if worth is None:
                return float("inf")
            worths.append(worth)
        return self.level_s(worths) if worths else float("inf")

    def is_continuous(self, num_replicas: int) -> bool:
        """Whether estimates divide the micro-batches continuously."""
        return self.own_counts and num_replicas > EXACT_COUNTS

    def at_level_s(self, level: Level) -> float:
        """`level_s` of many replicas."""
        longest = (self.workload.num_micro_batches + level.ahead) / level.weight
        return longest + self.cost.all_reduce_s(level.number, int(level.elements))

    def level_s(self, worths: Sequence[Worth]) -> float:
        """Seconds of an iteration with the micro-batches divided as well as possible."""
        if self.is_continuous(len(worths)):
            return self.at_level_s(Level.of(worths))
        counts = self.counts(worths)
        longest = max(w.fill_s + (m - 1) * w.pace_s for w, m in zip(worths, counts, strict=True) if m)
        return longest + self.cost.all_reduce_s(len(worths), int(max([w.elements for w in worths])))

    def shape(self, pipelines: Sequence[Pipeline]) -> Shape | None:
        """Layers and counts as estimated; None if something does not fit."""
        worths = [self.worth(p) for p in pipelines]
        if not worths or any(w is None for w in worths):
            return None
        known = [w for w in worths if w is not None]
        return Shape(tuple(pipelines), tuple(w.layers for w in known), self.counts(known), self.schedule)

    def step_s(self, shape: Shape) -> float:
        """Exact pipelines, estimated synchronisation."""
        mixed = shape.mixed
        alone = [each for a, each in enumerate(shape.replicas) if a not in mixed]
        times = self.replica_s(shape, alone)
        if mixed:
            times.append(self._exchange_s(shape, mixed))
        return max(times) + self.sync_s(shape)

    def _exchange_s(self, shape: Shape, mixed: frozenset[int]) -> float:
        split = shape.schedule.splits_backward
        halves = (OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT) if split else (OpKind.BACKWARD,)
        kinds = (OpKind.FORWARD, *halves)

        def seconds(at: Place) -> dict[OpKind, float]:
            pipeline, layers = shape.pipelines[at.replica], shape.layers[at.replica]
            last = at.stage == len(pipeline) - 1
            return dict(zip(kinds, self._stage_s(pipeline[at.stage], layers[at.stage], last, kinds), strict=True))

        def transfer_s(a: Place, b: Place) -> float:
            return self._both_ways_s(shape.pipelines[a.replica][a.stage], shape.pipelines[b.replica][b.stage])[0]

        return exchange_s(shape.plan(0, (), self.maker.health), mixed, seconds, transfer_s)

    def least_s(self, shape: Shape) -> float:
        """No schedule is faster: a group starts after the stages before it and ends before their backward, with all of
        its units in between; and a micro-batch passes all stages. Cheap; for shapes that exchange units."""
        unit_s = [self.unit_s(p, n) for p, n in zip(shape.pipelines, shape.layers, strict=True)]
        units: dict[tuple[int, int], float] = {
            (a, s): shape.counts[a] for a, row in enumerate(unit_s) for s in range(len(row))
        }
        for m in shape.migrations:
            units[m.replica, m.stage] -= 1
            units[m.executor, m.stage] += 1
        return self.bound_s(unit_s, units, shape.schedule) + self.sync_s(shape)

    def bound_s(
        self, unit_s: Sequence[Sequence[float]], units: Mapping[tuple[int, int], float], schedule: Schedule
    ) -> float:
        """`least_s` without synchronisation, from seconds per unit and numbers of units by (replica, stage)."""
        num_stages = max(map(len, unit_s))
        best = [min(row[s] for row in unit_s if s < len(row)) for s in range(num_stages)]
        if any(len(row) < num_stages for row in unit_s):
            best = [0.0] * num_stages  # a short replica's stages are others
        # The weight halves of a split backward hold up nobody.
        ratio, split = self.cost.backward_ratio, schedule.splits_backward
        before, through = (1 / (1 + ratio), (1 + ratio / 2) / (1 + ratio)) if split else (1.0, 1.0)
        first = [t * before for t in itertools.accumulate(best, initial=0.0)]
        longest = max(first[s] + n * unit_s[a][s] for (a, s), n in units.items() if n)
        return max(longest, sum(best) * through)

    def unit_s(self, pipeline: Pipeline, layers: Layers) -> list[float]:
        """Per stage: forward and backward of one micro-batch."""
        seconds = [g.layer_s * n for g, n in zip(pipeline, layers, strict=True)]
        seconds[-1] += pipeline[-1].head_s
        return seconds

    def sync_s(self, shape: Shape) -> float:
        most = max(self._most(p, n) for p, n in zip(shape.pipelines, shape.layers, strict=True))
        return self.cost.all_reduce_s(len(shape.pipelines), int(most))

    def replica_s(self, shape: Shape, wanted: Sequence[tuple[Pipeline, Layers, int]]) -> list[float]:
        """Exact pipeline seconds of many replicas at once."""
        return [max(stops) for stops in self.stops_s(shape.schedule, wanted)]

    def stops_s(self, schedule: Schedule, wanted: Sequence[tuple[Pipeline, Layers, int]]) -> list[tuple[float, ...]]:
        """When each stage is done, exactly, of many replicas at once."""
        keys = [(schedule, tuple([g.kind for g in p]), n, m) for p, n, m in wanted]
        todo: dict[tuple[int, int], list[int]] = {}
        for i, key in enumerate(keys):
            if key[3] == 0:
                self._exact[key] = (0.0,) * len(key[2])
            elif key not in self._exact:
                self._exact[key] = ()  # counted once per batch
                todo.setdefault((len(key[2]), key[3]), []).append(i)
        for (num_stages, count), rows in todo.items():
            line = timeline(schedule, num_stages, count)
            compute = np.array([self._compute_s(wanted[i], line.kinds) for i in rows]).transpose(2, 0, 1)
            transfer = (
                np.array([self._transfers(wanted[i][0]) for i in rows]).reshape(len(rows), 2, -1).transpose(1, 0, 2)
            )
            for i, stops in zip(rows, line.stops_s(compute, transfer).tolist(), strict=True):
                self._exact[keys[i]] = tuple(stops)
        return [self._exact[key] for key in keys]

    def _compute_s(self, replica: tuple[Pipeline, Layers, int], kinds: tuple[OpKind, ...]) -> list[tuple[float, ...]]:
        """[stage][kind]."""
        pipeline, layers, _ = replica
        last = len(pipeline) - 1
        return [self._stage_s(g, n, s == last, kinds) for s, (g, n) in enumerate(zip(pipeline, layers, strict=True))]

    def _stage_s(self, group: TpGroup, layers: int, last: bool, kinds: tuple[OpKind, ...]) -> tuple[float, ...]:
        key = (group.kind, layers, last, kinds)
        if key not in self._stage:
            stage = StagePlan(0, layers, group.ranks, group.weights)
            cost = self.cost.stage_cost(stage, last=last, health=self.maker.health)
            self._stage[key] = tuple(cost.stage_op_s(self.workload.micro_batch, kind) for kind in kinds)
        return self._stage[key]


def _even(total: int, parts: int) -> tuple[int, ...]:
    return tuple(total // parts + (i < total % parts) for i in range(parts))
