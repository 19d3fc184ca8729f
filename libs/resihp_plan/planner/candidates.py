"""Arrangements of the surviving devices that are worth comparing.

Per hit replica: shrink its TP groups in place, move layers as well, re-form it with as many or fewer stages (devices of
a stage that lost all its members join others), or drop it. For the job: devices without work join slow groups or stand
by; hit replicas are merged stage by stage; everybody is regrouped. Arrangements say nothing about micro-batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, prod

from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel
from resihp_plan.plan import ParallelPlan, ReplicaPlan, StagePlan
from resihp_plan.planner.balance import Balancer, Group, Stages, group_weights
from resihp_plan.planner.level import level
from resihp_plan.workload import Workload

MAX_COMPOSITIONS = 40
"""Ways to cut a replica's devices into stages that are tried one by one; beyond, only whole old groups are joined."""
MAX_OPTIONS = 8
"""Options per hit replica that are combined with those of other replicas."""
MAX_COMBINATIONS = 128
MAX_REGROUPED_DEVICES = 64


@dataclass(frozen=True)
class Arrangement:
    """Replicas without their micro-batch counts."""

    name: str
    replicas: tuple[Stages, ...]
    standby: tuple[int, ...]


@dataclass(frozen=True)
class _Option:
    """What can become of one replica."""

    name: str
    stages: Stages | None


class Search:
    """What the generators need to know: how good a group, a replica or an arrangement is."""

    def __init__(
        self,
        cost: CostModel,
        workload: Workload,
        health: Health | None,
        node_of: Mapping[int, str],
        *,
        span_nodes: bool,
        largest_groups: bool = False,
    ) -> None:
        """`span_nodes`: TP groups may have members on several nodes. `largest_groups`: never leave a device out of a
        group, even if it does not make the group faster."""
        self.cost, self.workload, self.health = cost, workload, health
        self._balancer = Balancer(cost, workload.micro_batch, health)
        self._node_of, self._span_nodes, self._largest_groups = node_of, span_nodes, largest_groups

    def group(self, ranks: Group) -> StagePlan:
        """The fastest TP group out of these ranks."""
        by_node: dict[str, list[int]] = {}
        for rank in ranks:
            by_node.setdefault("" if self._span_nodes else self._node_of[rank], []).append(rank)
        groups = (self._balancer.best_group(tuple(g), largest=self._largest_groups) for g in by_node.values())
        return min(groups, key=lambda g: (self._balancer.pace_s(g, last=False), -len(g.ranks)))

    def grown(self, stage: StagePlan, device: int) -> StagePlan | None:
        """`stage` with one more member; None if it has no unit for it, or is on another node."""
        ranks = (*stage.ranks, device)
        if not self._span_nodes and len({self._node_of[r] for r in ranks}) > 1:
            return None
        weights = group_weights(ranks, self.cost.model, self.health)
        return None if weights is None else replace(stage, ranks=ranks, weights=weights)

    def slowest(self, stages: Stages) -> int:
        """Index of the stage that paces the replica."""
        last = len(stages) - 1
        paces = [self._balancer.pace_s(stage, last=s == last) for s, stage in enumerate(stages)]
        return paces.index(max(paces))

    def spread(self, groups: Sequence[StagePlan]) -> Stages:
        return self._balancer.spread_layers(groups)

    def fill_and_pace(self, stages: Stages) -> tuple[float, float]:
        return self._balancer.fill_and_pace(stages)

    def counts(self, replicas: Sequence[Stages]) -> tuple[int, ...]:
        """Micro-batches per replica, level by the estimate."""
        return self._level([self.fill_and_pace(r) for r in replicas])

    def estimate_s(self, replicas: Sequence[Stages]) -> float:
        """Time of the slowest replica with the best counts; good for ranking only, `simulate` decides."""
        return self.level_s([self.fill_and_pace(r) for r in replicas])

    def level_s(self, times: Sequence[tuple[float, float]]) -> float:
        """`estimate_s`, from what `fill_and_pace` says."""
        return max([fill + (m - 1) * pace for (fill, pace), m in zip(times, self._level(times), strict=True) if m > 0])

    def _level(self, times: Sequence[tuple[float, float]]) -> tuple[int, ...]:
        found = level([fill - pace for fill, pace in times], [t[1] for t in times], self.workload.num_micro_batches)
        assert found is not None  # no least, no caps
        return found


def arrangements(plan: ParallelPlan, usable: Collection[int], search: Search) -> tuple[Arrangement, ...]:
    """Every candidate for the ranks in `usable`, without repetition; at least one if `usable` is not empty."""
    typical = search.workload.num_micro_batches / len(plan.replicas)
    options = [_replica_options(a, replica, usable, search, typical) for a, replica in enumerate(plan.replicas)]
    found: list[Arrangement] = []
    for chosen in _combinations(options, search):
        found += _with_pool(chosen, usable, search)
    found += [x for merged in _merges(plan, usable, options, search) for x in _with_pool(merged, usable, search)]
    if any(o[0].name for o in options):
        found += _regroupings(plan, usable, search)
    unique = {
        (x.replicas, x.standby): x for x in reversed(found) if x.replicas
    }  # the first name of an arrangement wins
    return tuple(sorted(unique.values(), key=lambda x: (search.estimate_s(x.replicas), x.name)))


def _replica_options(
    a: int, replica: ReplicaPlan, usable: Collection[int], search: Search, typical_count: float
) -> list[_Option]:
    survivors = [tuple(r for r in stage.ranks if r in usable) for stage in replica.stages]
    if all(g == st.ranks for g, st in zip(survivors, replica.stages, strict=True)):
        return [_Option("", replica.stages)]
    options: list[_Option] = []
    if all(survivors):
        groups = [search.group(g) for g in survivors]
        in_place = tuple(_relayer(g, st) for g, st in zip(groups, replica.stages, strict=True))
        options.append(_Option(f"R{a} shrink", in_place))
        options.append(_Option(f"R{a} shrink and move layers", search.spread(groups)))
    found = {o.stages for o in options}
    reformed = [
        _Option(f"R{a} re-form with {len(stages)} stages", stages)
        for stages in dict.fromkeys(_reformed(survivors, len(replica.stages), search))
        if stages not in found
    ]

    def seconds(option: _Option) -> float:
        assert option.stages is not None
        fill, pace = search.fill_and_pace(option.stages)
        return fill + (typical_count - 1) * pace

    reformed.sort(key=seconds)  # stable: equal ones keep the order in which they were made
    return [*options, *reformed[: MAX_OPTIONS - len(options) - 1], _Option(f"R{a} drop", None)]


def _relayer(group: StagePlan, like: StagePlan) -> StagePlan:
    return replace(group, layer_start=like.layer_start, layer_stop=like.layer_stop)


def _reformed(survivors: Sequence[Group], max_stages: int, search: Search) -> Iterator[Stages]:
    """The replica's devices, in pipeline order, cut into 1 to `max_stages` TP groups."""
    devices = tuple(itertools.chain.from_iterable(survivors))
    units: Sequence[Group] = [(d,) for d in devices]
    largest = max((comb(len(devices) - 1, p - 1) for p in range(1, min(max_stages, len(devices)) + 1)), default=0)
    if largest > MAX_COMPOSITIONS:
        units = [g for g in survivors if g]
    for num_stages in range(min(max_stages, len(units), search.cost.model.num_layers), 0, -1):
        if comb(len(units) - 1, num_stages - 1) <= 4 * MAX_COMPOSITIONS:
            for groups in _compositions(units, num_stages):
                yield search.spread([search.group(g) for g in groups])
        else:  # too many to try: as even as possible
            yield search.spread([search.group(g) for g in _even(devices, num_stages)])


def _compositions(units: Sequence[Group], num_parts: int) -> Iterator[list[Group]]:
    """All ways to join neighbours in `units` to `num_parts` non-empty groups."""
    for cuts in itertools.combinations(range(1, len(units)), num_parts - 1):
        bounds = (0, *cuts, len(units))
        yield [tuple(itertools.chain.from_iterable(units[a:b])) for a, b in itertools.pairwise(bounds)]


def _even(devices: Group, num_parts: int) -> list[Group]:
    bounds = [len(devices) * i // num_parts for i in range(num_parts + 1)]
    return [devices[a:b] for a, b in itertools.pairwise(bounds)]


def _combinations(options: Sequence[Sequence[_Option]], search: Search) -> Iterator[list[_Option]]:
    """All combinations; if they are too many: the first choice of every replica, varied in one replica at a time."""
    if prod(len(o) for o in options) <= MAX_COMBINATIONS:
        yield from (list(c) for c in itertools.product(*options))
        return
    first = [_first_choice(o, search) for o in options]
    yield first
    for a, choices in enumerate(options):
        for option in choices:
            if option != first[a]:
                yield [*first[:a], option, *first[a + 1 :]]


def _first_choice(options: Sequence[_Option], search: Search) -> _Option:
    def pace(option: _Option) -> float:
        return float("inf") if option.stages is None else search.fill_and_pace(option.stages)[1]

    return min(options, key=pace)


def _with_pool(chosen: Sequence[_Option], usable: Collection[int], search: Search) -> Iterator[Arrangement]:
    """The arrangement with the devices that have no work standing by, and with them joining slow groups."""
    replicas = tuple(o.stages for o in chosen if o.stages is not None)
    if not replicas:
        return
    name = "; ".join(o.name for o in chosen if o.name) or "keep"
    working = {rank for stages in replicas for st in stages for rank in st.ranks}
    pool = tuple(sorted(set(usable) - working))
    yield Arrangement(name, replicas, pool)
    if not pool:
        return
    joined = _join(replicas, pool, search)
    if joined.replicas == replicas:
        return
    name += "; others join"
    yield replace(joined, name=name)
    respread = tuple(
        search.spread(new) if new != old else new for new, old in zip(joined.replicas, replicas, strict=True)
    )
    yield replace(joined, name=f"{name} and move layers", replicas=respread)


def _join(replicas: tuple[Stages, ...], pool: tuple[int, ...], search: Search) -> Arrangement:
    """Give the pool's devices one by one to the replica where that helps most; who helps nowhere stands by.

    In a replica only its slowest stage is a candidate: making another one faster does not make the replica faster.
    """
    standby: list[int] = []
    times = [search.fill_and_pace(stages) for stages in replicas]
    slowest = [search.slowest(stages) for stages in replicas]
    now = search.level_s(times)
    for device in pool:
        best: tuple[float, int, Stages] | None = None
        for a, stages in enumerate(replicas):
            s = slowest[a]
            grown = search.grown(stages[s], device)
            if grown is None:
                continue
            trial = (*stages[:s], grown, *stages[s + 1 :])
            seconds = search.level_s([*times[:a], search.fill_and_pace(trial), *times[a + 1 :]])
            if best is None or seconds < best[0]:
                best = (seconds, a, trial)
        if best is not None and best[0] < now:
            now, a, stages = best
            replicas = (*replicas[:a], stages, *replicas[a + 1 :])
            times[a], slowest[a] = search.fill_and_pace(stages), search.slowest(stages)
        else:
            standby.append(device)
    return Arrangement("", replicas, tuple(standby))


def _merges(
    plan: ParallelPlan, usable: Collection[int], options: Sequence[Sequence[_Option]], search: Search
) -> Iterator[list[_Option]]:
    """Two hit replicas with equally many stages become one, stage by stage; the rest takes its first choice."""
    hit = [a for a, o in enumerate(options) if o[0].name]
    first = [_first_choice(o, search) for o in options]
    for a, b in itertools.islice(itertools.combinations(hit, 2), MAX_COMBINATIONS):
        one, other = plan.replicas[a].stages, plan.replicas[b].stages
        if len(one) != len(other):
            continue
        groups = [tuple(r for r in (*x.ranks, *y.ranks) if r in usable) for x, y in zip(one, other, strict=True)]
        if not all(groups):
            continue
        merged = tuple(_relayer(search.group(g), st) for g, st in zip(groups, one, strict=True))
        for name, stages in (
            (f"merge R{a} and R{b}", merged),
            (f"merge R{a} and R{b}, move layers", search.spread(merged)),
        ):
            chosen = list(first)
            chosen[a], chosen[b] = _Option(name, stages), _Option("", None)
            yield chosen


def _regroupings(plan: ParallelPlan, usable: Collection[int], search: Search) -> Iterator[Arrangement]:
    """Everybody anew, as evenly as possible; devices stay near their old stage, so that much state stays in place."""
    if len(usable) > MAX_REGROUPED_DEVICES:
        return
    old = {rank: (s, a, t) for rank in plan.active for a, s, t in [plan.position(rank) or (0, 0, 0)]}
    devices = tuple(sorted(usable, key=lambda r: (old.get(r, (len(plan.active), 0, 0)), r)))
    for num_replicas in range(1, len(plan.replicas) + 1):
        for num_stages in range(1, max(len(r.stages) for r in plan.replicas) + 1):
            if num_replicas * num_stages > len(devices) or num_stages > search.cost.model.num_layers:
                continue
            columns = [_even(column, num_replicas) for column in _even(devices, num_stages)]
            if not all(g for column in columns for g in column):
                continue
            replicas = tuple(
                search.spread([search.group(columns[s][a]) for s in range(num_stages)]) for a in range(num_replicas)
            )
            working = {rank for stages in replicas for st in stages for rank in st.ranks}
            yield Arrangement(
                f"regroup as {num_replicas} replicas of {num_stages} stages",
                replicas,
                tuple(sorted(set(usable) - working)),
            )
