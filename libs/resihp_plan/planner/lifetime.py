"""Months of a job under a policy: faults and repairs from a trace or a generator, plans, pauses, goodput.

Event-driven: between two events the throughput is constant. What a change costs is stated in `Pauses`.
"""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from resihp_plan.cluster import Health
from resihp_plan.plan import ParallelPlan
from resihp_plan.planner.moving import moving
from resihp_plan.planner.policies import Arena, Outcome, Policy, evaluate
from resihp_plan.planner.price import Price

HOUR = 3600.0


@dataclass(frozen=True, order=True)
class Fault:
    """A device at `p` from `start_s` to `stop_s`."""

    start_s: float
    stop_s: float
    rank: int
    p: float


@dataclass(frozen=True)
class Pauses:
    """Seconds without progress per change; every policy has the same detection delay."""

    detect_s: float = 5.0
    """From the fault to the verdict (2 to 3 iterations; paper, section 8)."""
    restart_s: float = 390.0
    """Clean-up, rescheduling, checkpoint load, communicators, warm-up (TrainMover: 6.5 minutes at 8,000 GPUs)."""
    checkpoint_every_s: float = 1800.0
    """A restart loses half of it on average."""
    price: Price = field(default_factory=Price)
    """Of a change in place."""


@dataclass(frozen=True)
class Segment:
    """A stretch of constant throughput, relative to the healthy job."""

    start_s: float
    stop_s: float
    throughput: float


@dataclass(frozen=True)
class Lifetime:
    """A policy's whole run."""

    policy: Policy
    segments: tuple[Segment, ...]
    changes: int
    paused_s: float
    stopped_s: float
    """Time in which the policy could not go on and waited for a repair."""

    @property
    def goodput(self) -> float:
        """Work done, relative to the healthy job in the same time."""
        total = self.segments[-1].stop_s - self.segments[0].start_s
        return sum((s.stop_s - s.start_s) * s.throughput for s in self.segments) / total


RESTARTING = frozenset({Policy.STATIC, Policy.RESTART, Policy.GREYHOUND, Policy.ADAPTRA})
"""Policies that answer a loss, and a return, with a restart from a checkpoint."""


def live(
    policy: Policy,
    arena: Arena,
    healthy_s: float,
    faults: Iterable[Fault],
    duration_s: float,
    *,
    pauses: Pauses | None = None,
    progress: Callable[[float], None] | None = None,
    answer: Callable[[Policy, Arena, Health], Outcome] = evaluate,
) -> Lifetime:
    """Run `policy` for `duration_s`. `healthy_s`: step time of the reference; `answer`: what the policy makes of the
    devices' speeds. Deterministic."""
    costs = pauses or Pauses()
    known = sorted(faults)
    times = sorted({0.0, duration_s, *(t for f in known for t in (f.start_s, f.stop_s) if 0 < t < duration_s)})
    segments: list[Segment] = []
    seen: dict[tuple[tuple[int, float], ...], Outcome] = {}
    plan = arena.healthy
    before: tuple[tuple[int, float], ...] = ()
    owed = paused = stopped = 0.0
    changes = 0
    for start, stop in itertools.pairwise(times):
        health: dict[int, float] = {}
        for f in known:
            if f.start_s <= start < f.stop_s:
                health[f.rank] = min(f.p, health.get(f.rank, 1.0))
        key = tuple(sorted(health.items()))
        if key not in seen:
            seen[key] = answer(policy, arena, health)
        outcome = seen[key]
        if key != before:
            changes += 1
            owed = _pause(policy, costs, arena, before, key, outcome, plan)
            if outcome.shape is not None:
                working = {r for p in outcome.shape.pipelines for g in p for r in g.ranks}
                plan = outcome.shape.plan(plan.epoch + 1, sorted(set(arena.cluster.ranks) - working))
            before = key
        idle = min(owed, stop - start)
        owed -= idle
        rate = 0.0 if outcome.step_s is None else healthy_s / outcome.step_s
        if idle:
            segments.append(Segment(start, start + idle, 0.0))
            paused += idle
        if start + idle < stop:
            segments.append(Segment(start + idle, stop, rate))
            stopped += (stop - start - idle) if rate == 0.0 else 0.0
        if progress is not None:
            progress(stop)
    return Lifetime(policy, tuple(segments), changes, paused, stopped)


def _pause(
    policy: Policy,
    pauses: Pauses,
    arena: Arena,
    before: tuple[tuple[int, float], ...],
    after: tuple[tuple[int, float], ...],
    outcome: Outcome,
    plan: ParallelPlan,
) -> float:
    lost = {r for r, p in before if p <= 0.0} != {r for r, p in after if p <= 0.0}
    if policy in RESTARTING:
        return pauses.detect_s + pauses.restart_s + pauses.checkpoint_every_s / 2 if lost else 0.0
    if (
        outcome.shape is None or outcome.shape.migrations
    ):  # rerouting moves no state; the paper's layers are not charged
        return pauses.detect_s + pauses.price.rebuild_s if lost else 0.0
    new = outcome.shape.plan(plan.epoch + 1, ())
    if new.replicas == plan.replicas:
        return 0.0
    moved = moving(plan, new, arena.cost.model)
    # A device that is slow keeps working while it is found; one that is lost does not.
    return (pauses.detect_s if lost else 0.0) + pauses.price.change_s(moved, arena.cost)


def read_node_faults(
    lines: Iterable[str], nodes: Sequence[str], ranks_of: Callable[[str], Sequence[int]], *, start_h: float = 0.0
) -> tuple[Fault, ...]:
    """Fail-stop faults of a node trace (columns start_h, end_h, node, class): all devices of the node are lost.

    Node n of the trace is node n modulo the cluster's. Stress tests and planned changes are no crashes of a running
    job and are left out. Raises ValueError for a trace without these columns.
    """
    rows = csv.DictReader(lines)
    wanted = {"start_h", "end_h", "node", "class"}
    if not wanted <= set(rows.fieldnames or ()):
        raise ValueError(f"a fault trace has the columns {sorted(wanted)}, got {rows.fieldnames}")
    found = []
    for row in rows:
        if row["class"] in ("Stress Test Failure", "Change") or int(row["node"]) >= len(nodes):
            continue
        start, stop = float(row["start_h"]) - start_h, float(row["end_h"]) - start_h
        if stop > max(start, 0.0):
            node = nodes[int(row["node"])]
            found += [Fault(max(0.0, start) * HOUR, stop * HOUR, rank, 0.0) for rank in ranks_of(node)]
    return tuple(sorted(found))


def generate(
    rng: random.Random, ranks: Sequence[int], num_nodes: int, days: float, *, slow_per_node_day: float = 0.05
) -> tuple[Fault, ...]:
    """Losses of single devices and slowness, by published rates.

    Losses: 4.2 per 1,000 node-days, repair lognormal in hours (2.71, 2.52), at most 30 days (InfiniteHBD trace).
    Slowness: mean 10 minutes, 5 % up to 10 hours (Greyhound); severities are not published: 0.9 to 0.1.
    """
    found = []
    for rate, slow in ((0.0042, False), (slow_per_node_day, True)):
        day = 0.0
        while (day := day + rng.expovariate(rate * num_nodes)) < days:
            rank = rng.choice(list(ranks))
            if slow:
                hours = rng.uniform(0.2, 10.0) if rng.random() < 0.05 else rng.expovariate(6.0)
                p = rng.choice([0.9, 0.75, 0.5, 0.4, 0.1])
            else:
                hours, p = min(720.0, rng.lognormvariate(2.71, 2.52)), 0.0
            found.append(Fault(day * 24 * HOUR, (day * 24 + hours) * HOUR, rank, p))
    return tuple(sorted(found))
