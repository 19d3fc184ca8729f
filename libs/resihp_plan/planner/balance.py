"""Even out what a replica and a job have: devices in a TP group, layers over stages, micro-batches over replicas."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from resihp_plan.cluster import Health, speed_of
from resihp_plan.cost import CostModel
from resihp_plan.layout import unit_shares
from resihp_plan.model import ModelSpec, Split
from resihp_plan.plan import StagePlan
from resihp_plan.workload import MicroBatchWork

Group = tuple[int, ...]
"""Ranks of a TP group, in TP-index order."""
Stages = tuple[StagePlan, ...]


class Balancer:
    """Best groups and layer counts for one model, typical micro-batch and health. Remembers what it worked out."""

    def __init__(self, cost: CostModel, work: MicroBatchWork, health: Health | None) -> None:
        self.cost, self.work, self.health = cost, work, health
        self._pace: dict[tuple[tuple[int, ...], tuple[float, ...], bool], dict[int, float]] = {}
        self._fill_and_pace: dict[Stages, tuple[float, float]] = {}
        self._best: dict[tuple[tuple[float, ...], bool], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._counts: dict[tuple[tuple[tuple[int, ...], tuple[float, ...]], ...], list[int]] = {}

    def pace_s(self, stage: StagePlan, *, last: bool) -> float:
        """Seconds of forward and backward of one micro-batch in one stage."""
        return self._seconds(stage, stage.layer_stop - stage.layer_start, last, self._paces(stage, last))

    def _paces(self, stage: StagePlan, last: bool) -> dict[int, float]:
        """Layers -> seconds, as far as known, of groups that are alike."""
        return self._pace.setdefault((stage.weights, self._speeds(stage.ranks), last), {})

    def _speeds(self, group: Group) -> tuple[float, ...]:
        return tuple([speed_of(rank, self.health) for rank in group])

    def _seconds(self, like: StagePlan, layers: int, last: bool, known: dict[int, float]) -> float:
        if layers not in known:
            stage = StagePlan(0, layers, like.ranks, like.weights)
            cost = self.cost.stage_cost(stage, last=last, health=self.health)
            known[layers] = cost.round_trip(self.work).seconds(self.work)
        return known[layers]

    def fill_and_pace(self, stages: Stages) -> tuple[float, float]:
        """Seconds of the first micro-batch through the whole pipeline and back, and of each further one."""
        if stages not in self._fill_and_pace:
            last = len(stages) - 1
            paces = [self.pace_s(st, last=s == last) for s, st in enumerate(stages)]
            self._fill_and_pace[stages] = (sum(paces), max(paces))
        return self._fill_and_pace[stages]

    def best_group(self, group: Group, *, largest: bool = False) -> StagePlan:
        """The fastest TP group out of these ranks (all layers, as a stage).

        Top-k by speed, for every k (paper, Eq. 4, without the restriction to powers of two); a smaller k only if it is
        strictly faster, and never with `largest`. TP order stays as given.
        """
        speeds = self._speeds(group)
        key = speeds, largest
        if key not in self._best:
            self._best[key] = self._choose(group, speeds, largest)
        members, weights = self._best[key]
        return StagePlan(0, self.cost.model.num_layers, tuple(group[i] for i in members), weights)

    def _choose(
        self, group: Group, speeds: tuple[float, ...], largest: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which members, and their weights: groups with equal speeds are alike."""
        by_speed = sorted(range(len(group)), key=lambda i: (-speeds[i], i))
        best: tuple[float, tuple[int, ...], tuple[int, ...]] | None = None
        for k in range(len(group), 0, -1):
            members = tuple(sorted(by_speed[:k]))
            chosen = tuple(group[i] for i in members)
            weights = group_weights(chosen, self.cost.model, self.health)
            if weights is None:
                continue
            pace = self.pace_s(StagePlan(0, self.cost.model.num_layers, chosen, weights), last=False)
            if best is None or pace < best[0]:
                best = (pace, members, weights)
            if largest:
                break
        assert best is not None  # a group of one always works
        return best[1:]

    def spread_layers(self, groups: Sequence[StagePlan]) -> Stages:
        """Give each stage the number of layers that makes the slowest stage as fast as possible.

        Layers are equal, so handing them out one by one to the stage that would be fastest with one more is optimal.
        `groups`: ranks and weights; their layer ranges are ignored. Raises ValueError for more stages than layers.
        """
        num_layers = self.cost.model.num_layers
        if len(groups) > num_layers:
            raise ValueError(f"{len(groups)} stages for {num_layers} layers")
        key = tuple([(g.weights, self._speeds(g.ranks)) for g in groups])
        if key not in self._counts:
            self._counts[key] = self._spread(groups, num_layers)
        stages, start = [], 0
        for g, n in zip(groups, self._counts[key], strict=True):
            stages.append(StagePlan(start, start + n, g.ranks, g.weights))
            start += n
        return tuple(stages)

    def _spread(self, groups: Sequence[StagePlan], num_layers: int) -> list[int]:
        end = len(groups) - 1
        known = [self._paces(g, s == end) for s, g in enumerate(groups)]

        def seconds(s: int, layers: int) -> float:
            return self._seconds(groups[s], layers, s == end, known[s])

        counts = [1] * len(groups)
        heap = [(seconds(s, 2), s) for s in range(len(groups))]
        heapq.heapify(heap)
        for _ in range(num_layers - len(groups)):
            _, s = heapq.heappop(heap)
            counts[s] += 1
            heapq.heappush(heap, (seconds(s, counts[s] + 1), s))
        return counts


def group_weights(group: Group, model: ModelSpec, health: Health | None) -> tuple[int, ...] | None:
    """Weights by which a group shares units: even for equal speeds, else in proportion to p where that leaves nobody
    without head group or vocabulary block, else even. None if the group has more members than there are units."""
    even = (1,) * len(group)
    if not _everybody_works(group, even, model):
        return None
    by_speed = tuple(max(1, round(100 * speed_of(rank, health))) for rank in group)
    if len(set(by_speed)) > 1 and _everybody_works(group, by_speed, model):
        return by_speed
    return even


def _everybody_works(group: Group, weights: tuple[int, ...], model: ModelSpec) -> bool:
    stage = StagePlan(0, model.num_layers, group, weights)
    return all(min(unit_shares(stage, model, split)) > 0 for split in (Split.ATTENTION, Split.VOCAB))
