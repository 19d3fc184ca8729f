"""The next plan when speeds or devices change: slow, recovered, returned or lost (design: section 8).

Every candidate is worth `tokens/s * (horizon - time of the change)`. "Stay" and changes that move no state are always
among them, so a mild or short slowness is not answered with a costly move.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from resihp_plan.cluster import Cluster, Health
from resihp_plan.cost import CostModel
from resihp_plan.describe import describe_change
from resihp_plan.model import ModelSpec
from resihp_plan.plan import ParallelPlan, ReplicaPlan, Schedule, StagePlan
from resihp_plan.planner.assumptions import Assumptions
from resihp_plan.planner.candidates import Search, arrangements
from resihp_plan.planner.decision import Alternative, Decision, Infeasible, InfeasibleKind
from resihp_plan.planner.effort import Effort, Switches
from resihp_plan.planner.moving import Mover, Moving
from resihp_plan.planner.polish import polish
from resihp_plan.planner.price import Price
from resihp_plan.planner.proof import prove
from resihp_plan.planner.search import nodes_of, search
from resihp_plan.planner.shape import Shape, shape_of
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import GroupMaker
from resihp_plan.workload import Workload

SMALL = 16
"""Up to so many devices, the arrangements of `plan_after_loss` are compared too: other numbers of stages, merges."""
CLOSE = 0.005
"""Candidates within this of the most tokens are equal (no prediction is better): the smallest change wins."""
SEED = 20_260_506


@dataclass(frozen=True)
class _Candidate:
    name: str
    plan: ParallelPlan
    step_s: float
    moved: Moving
    change_s: float
    tokens: float
    """Within the horizon."""


def plan_change(
    plan: ParallelPlan,
    model: ModelSpec,
    cluster: Cluster,
    health: Health,
    workload: Workload,
    *,
    clock: Callable[[], float],
    assuming: Assumptions | None = None,
    reference: ParallelPlan | None = None,
    switches: Switches | None = None,
    effort: Effort | None = None,
    epoch: int | None = None,
    seed: int = SEED,
) -> Decision:
    """The best plan for devices at these speeds; the same plan (same epoch, same digest) if staying is best.

    `health`: rank -> p for ranks of the cluster (missing: 1; 0: lost). Ranks that `plan` does not use are idle or have
    returned, and may join. `reference`: the healthy plan, for the bound and to grow back to (default: `plan`). State is
    assumed to be recoverable. Device peaks of the cluster multiply p.

    Deterministic apart from `planning_s`. Raises `Infeasible` if no device is left or nothing fits into memory, and
    ValueError for ranks that the cluster does not know.
    """
    started = clock()
    unknown = sorted(set(health) - set(cluster.ranks))
    if unknown:
        raise ValueError(f"ranks {unknown} have a speed but are not in the cluster")
    speeds = cluster.speeds(health)
    usable = frozenset(r for r in cluster.ranks if speeds.get(r, 1.0) > 0.0)
    if not usable:
        raise Infeasible(InfeasibleKind.NO_DEVICES, f"none of the {len(cluster.ranks)} devices is alive")
    given = assuming or Assumptions()
    costs, limits = given.cost_of(model), given.memory_of(cluster, model, workload)
    chosen_switches = switches or Switches()
    maker = GroupMaker(
        costs,
        workload.micro_batch,
        speeds,
        limits,
        uneven=chosen_switches.uneven_tp,
        powers_of_two=not chosen_switches.uneven_tp,
    )
    space = Space(
        maker,
        workload,
        plan.schedule,
        own_layers=chosen_switches.layers,
        own_counts=chosen_switches.counts,
        layers_like=tuple(st.layer_stop - st.layer_start for st in plan.replicas[0].stages),
    )
    peaks = cluster.speeds({})
    nominal = space.at(GroupMaker(costs, workload.micro_batch, peaks, limits), plan.schedule)
    allowed = given.schedules if chosen_switches.schedule else ()
    planning = _Planning(plan, model, cluster, usable, space, given.price, plan.epoch + 1 if epoch is None else epoch)
    planning.propose(
        reference, chosen_switches, effort or Effort.for_devices(len(cluster.ranks)), seed, nominal, allowed
    )
    if not planning.found:
        raise Infeasible(InfeasibleKind.MEMORY, f"nothing fits into the memory of {len(usable)} devices")
    best = planning.best()
    prove(best.plan, model, usable, workload)
    before = reference or plan
    healthy = min(
        step_s_at(replace(before, schedule=s), _fitted(workload, before), costs, peaks)
        for s in {before.schedule, *allowed}
    )
    left = sum(speeds.get(r, 1.0) for r in usable) / sum(peaks.get(r, 1.0) for r in before.world)
    bound = workload.tokens / healthy * left
    return planning.decision(best, bound, clock() - started)


def _fitted(workload: Workload, plan: ParallelPlan) -> Workload:
    return Workload(plan.num_micro_batches, workload.tokens_per_micro_batch, workload.sum_sq_len_per_micro_batch)


class _Planning:
    """Candidates of one planning."""

    def __init__(
        self,
        plan: ParallelPlan,
        model: ModelSpec,
        cluster: Cluster,
        usable: frozenset[int],
        space: Space,
        price: Price,
        epoch: int,
    ) -> None:
        self.plan, self.model, self.cluster, self.usable = plan, model, cluster, usable
        self.space, self.price, self.epoch = space, price, epoch
        self.mover = Mover(plan, model)
        self.found: dict[str, _Candidate] = {}

    def propose(
        self,
        reference: ParallelPlan | None,
        switches: Switches,
        effort: Effort,
        seed: int,
        nominal: Space,
        schedules: Sequence[Schedule],
    ) -> None:
        stay = None if set(self.plan.active) - self.usable else shape_of(self.plan, self.space.maker)
        if stay is not None and sum(stay.counts) == self.space.workload.num_micro_batches:
            standby_is_lost = set(self.plan.standby) - self.usable
            self.add("stay", stay, keep=not standby_is_lost)
            if switches.counts:
                frozen = replace(self.space, own_layers=False)
                self.add("micro-batches only", polish(frozen, replace(stay, migrations=()), rounds=64))
        spans = any(
            len({self.cluster.node_of[r] for r in st.ranks}) > 1 for rep in self.plan.replicas for st in rep.stages
        )
        bases = [self.plan]
        if reference is not None and _placed(reference) != _placed(self.plan):
            bases.append(reference)
        for base in bases:
            nodes = nodes_of(base, self.usable, self.cluster.node_of, spans=spans)
            # Each base has its own generator: one more base must not change what another one finds.
            for f in search(
                base, nodes, self.space, random.Random(seed), effort, switches, nominal=nominal, schedules=schedules
            ):
                self.add(f.name, f.shape, step_s=f.step_s)
        if switches == Switches() and len(self.cluster.ranks) <= SMALL:
            self._add_arrangements(spans)

    def _add_arrangements(self, spans: bool) -> None:
        speeds = self.space.maker.health
        rooms = Search(self.space.cost, self.space.workload, speeds, self.cluster.node_of, span_nodes=spans)
        for x in arrangements(self.plan, self.usable, rooms)[:8]:
            counts = rooms.counts(x.replicas)
            plan = ParallelPlan(
                self.epoch,
                tuple(ReplicaPlan(stages, m) for stages, m in zip(x.replicas, counts, strict=True)),
                schedule=self.plan.schedule,
            )
            shape = shape_of(plan, self.space.maker)
            if shape is not None and all(self.space.worth(p) is not None for p in shape.pipelines):
                self.add(x.name, polish(self.space, shape))

    def add(self, name: str, shape: Shape, *, keep: bool = False, step_s: float | None = None) -> None:
        """`keep`: the plan in force as it is; costs nothing."""
        working = {r for p in shape.pipelines for g in p for r in g.ranks}
        plan = self.plan if keep else shape.plan(self.epoch, sorted(self.usable - working), self.space.maker.health)
        if not keep and _same(plan, self.plan):
            return  # the same again
        digest = plan.digest
        if digest in self.found:
            return
        seconds = self.space.step_s(shape) if step_s is None else step_s
        moved = self.mover.to(plan) if not keep else Moving(0, 0, 0)
        change_s = 0.0 if keep else self.price.change_s(moved, self.space.cost)
        tokens = self.space.workload.tokens / seconds * max(0.0, self.price.horizon_s - change_s)
        self.found[digest] = _Candidate(name, plan, seconds, moved, change_s, tokens)

    def best(self) -> _Candidate:
        """Most tokens within the horizon; among those that are close, the fewest bytes."""
        most = max(c.tokens for c in self.found.values())
        close = [c for c in self.found.values() if c.tokens >= most * (1 - CLOSE)]
        return min(close, key=lambda c: (c.moved.total, -c.tokens, c.change_s, c.plan.digest))

    def bytes_moved(self, c: _Candidate) -> int:
        return int(c.moved.total * (self.price.state_bytes_per_parameter or 3.0 * self.space.cost.bytes_per_element))

    def decision(self, best: _Candidate, bound: float, planning_s: float) -> Decision:
        others: dict[str, _Candidate] = {}
        for c in sorted(self.found.values(), key=lambda c: (-c.tokens, c.name, c.plan.digest)):
            if c is not best and c.name != best.name:
                others.setdefault(c.name, c)
        tokens = self.space.workload.tokens
        return Decision(
            plan=best.plan,
            name=best.name,
            predicted_step_s=best.step_s,
            predicted_tokens_per_s=tokens / best.step_s,
            bound_tokens_per_s=bound,
            alternatives=tuple(self._alternative(c, best) for c in others.values()),
            reason=(
                f"{best.name}: predicted {tokens / best.step_s:.0f} tokens/s ({tokens / best.step_s / bound:.1%} of "
                f"the bound), {self.bytes_moved(best) / 1e6:.1f} MB to move, {best.change_s:.2f} s without training"
            ),
            difference=describe_change(self.plan, best.plan),
            bytes_moved=self.bytes_moved(best),
            num_candidates=len(self.found),
            planning_s=planning_s,
            change_s=best.change_s,
        )

    def _alternative(self, c: _Candidate, best: _Candidate) -> Alternative:
        return Alternative(
            name=c.name,
            predicted_step_s=c.step_s,
            predicted_tokens_per_s=self.space.workload.tokens / c.step_s,
            bytes_moved=self.bytes_moved(c),
            difference=describe_change(self.plan, c.plan),
            why_lost=self._why_lost(c, best),
        )

    def _why_lost(self, c: _Candidate, best: _Candidate) -> str:
        if not best.tokens:
            return f"takes {c.change_s:.2f} s, longer than the horizon"
        fewer = 1 - c.tokens / best.tokens
        what = f"{fewer:.1%} fewer tokens" if fewer >= CLOSE else "no more tokens that count"
        return (
            f"{what} within {self.price.horizon_s:g} s "
            f"({c.step_s / best.step_s - 1:+.1%} time per step, {c.change_s:.2f} s to change)"
        )


def _same(a: ParallelPlan, b: ParallelPlan) -> bool:
    """But for the epoch."""
    same = a.replicas == b.replicas and a.migrations == b.migrations and a.schedule == b.schedule
    return same and set(a.world) == set(b.world)


def _placed(plan: ParallelPlan) -> tuple[tuple[StagePlan, ...], ...]:
    return tuple(r.stages for r in plan.replicas)


def step_s_at(plan: ParallelPlan, workload: Workload, cost: CostModel, speeds: Mapping[int, float]) -> float:
    """Step time of a plan as it is, at these speeds; infinite if it uses a stopped device."""
    maker = GroupMaker(cost, workload.micro_batch, speeds, None)
    shape = shape_of(plan, maker)
    return float("inf") if shape is None else Space(maker, workload, plan.schedule).step_s(shape)
