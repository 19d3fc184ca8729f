"""Random valid plans, and random changes of a plan: for trials, benchmarks and properties, never for planning.

Everything that a plan can describe comes up: one to three replicas of unlike depth, uneven layers and shares, members
without heads, ranks in any order, standby ranks, idle replicas, migrated units, both schedules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from random import Random

from resihp_plan.model import ModelSpec
from resihp_plan.plan import InvalidPlan, Migration, ParallelPlan, ReplicaPlan, Schedule, StagePlan
from resihp_plan.validate import validate

MAX_TRIES = 2000
MAX_REPLICAS = 3
_WEIGHTS = (1, 1, 1, 2, 3, 5)


class Variation(StrEnum):
    """What `vary` changes; the rest stays."""

    ANY = "any"
    LAYERS = "layers"
    SHARES = "shares"
    DEGREES = "degrees"
    MIGRATIONS = "migrations"
    SCHEDULE = "schedule"


def random_plan(
    rng: Random,
    model: ModelSpec,
    ranks: Sequence[int],
    num_micro_batches: int,
    *,
    epoch: int = 0,
    may_stand_by: bool = True,
    accept: Callable[[ParallelPlan], bool] = lambda plan: True,
) -> ParallelPlan:
    """A valid plan over `ranks` that `accept` takes; all of them work unless `may_stand_by`.

    Raises ValueError if none of `MAX_TRIES` is taken.

    >>> plan = random_plan(Random(1), ModelSpec(), range(8), 8)
    >>> plan.world, sum(r.num_micro_batches for r in plan.replicas)
    ((0, 1, 2, 3, 4, 5, 6, 7), 8)
    """
    for _ in range(MAX_TRIES):
        plan = _sample(rng, model, rng.sample(list(ranks), len(ranks)), num_micro_batches, epoch, may_stand_by)
        if is_valid(plan, model, num_micro_batches) and accept(plan):
            return plan
    raise ValueError(f"no acceptable plan for ranks {list(ranks)} in {MAX_TRIES} tries")


def vary(rng: Random, model: ModelSpec, plan: ParallelPlan, what: Variation) -> ParallelPlan:
    """A change of one kind, of the next epoch. The result may break a rule (`is_valid`): then draw again."""
    replicas, migrations, schedule = plan.replicas, plan.migrations, plan.schedule
    match what:
        case Variation.ANY:
            return random_plan(rng, model, plan.world, plan.num_micro_batches, epoch=plan.epoch + 1)
        case Variation.LAYERS:
            cuts = _cuts(rng, model, len(replicas[0].stages))
            replicas = tuple(_cut(rng, model, r, cuts if rng.random() < 0.5 else None) for r in replicas)
        case Variation.SHARES:
            replicas = tuple(
                replace(r, stages=tuple(replace(s, weights=_weights(rng, len(s.ranks))) for s in r.stages))
                for r in replicas
            )
        case Variation.DEGREES:
            replicas = tuple(_other_degrees(rng, r) for r in replicas)
        case Variation.SCHEDULE:
            schedule = next(s for s in Schedule if s is not schedule)
        case Variation.MIGRATIONS:
            pass
    varied = replace(plan, epoch=plan.epoch + 1, replicas=replicas, migrations=(), schedule=schedule)
    if what is Variation.MIGRATIONS:
        return replace(varied, migrations=_migrations(rng, varied, at_least=1))
    return replace(varied, migrations=tuple(m for m in migrations if _is_shared(varied, m)))


def is_valid(plan: ParallelPlan, model: ModelSpec, num_micro_batches: int) -> bool:
    """Whether the plan breaks no rule."""
    try:
        validate(plan, model, num_micro_batches=num_micro_batches)
    except InvalidPlan:
        return False
    return True


def _sample(
    rng: Random, model: ModelSpec, ranks: list[int], num_micro_batches: int, epoch: int, may_stand_by: bool
) -> ParallelPlan:
    num_standby = rng.randint(1, len(ranks) // 2) if may_stand_by and len(ranks) > 2 and rng.random() < 0.2 else 0
    standby, active = ranks[:num_standby], ranks[num_standby:]
    members = _split(rng, active, rng.randint(1, min(MAX_REPLICAS, len(active))))
    counts = _counts(rng, len(members), num_micro_batches)
    depth = rng.randint(1, min(3, model.num_layers, *(len(m) for m in members)))
    cuts = _cuts(rng, model, depth)
    replicas = []
    for own, count in zip(members, counts, strict=True):
        alike = rng.random() < 0.6
        here = cuts if alike else _cuts(rng, model, rng.randint(1, min(3, model.num_layers, len(own))))
        groups = _split(rng, own, len(here) - 1)
        stages = tuple(
            StagePlan(a, b, tuple(group), _weights(rng, len(group)))
            for (a, b), group in zip(itertools.pairwise(here), groups, strict=True)
        )
        replicas.append(ReplicaPlan(stages, count))
    plan = ParallelPlan(epoch, tuple(replicas), standby=tuple(sorted(standby)), schedule=rng.choice(tuple(Schedule)))
    return replace(plan, migrations=_migrations(rng, plan)) if rng.random() < 0.5 else plan


def _split(rng: Random, items: Sequence[int], num_parts: int) -> list[list[int]]:
    """Contiguous parts, none empty."""
    ends = [0, *sorted(rng.sample(range(1, len(items)), num_parts - 1)), len(items)]
    return [list(items[a:b]) for a, b in itertools.pairwise(ends)]


def _counts(rng: Random, num_replicas: int, num_micro_batches: int) -> list[int]:
    """Micro-batches per replica; now and then one idles."""
    low = 0 if rng.random() < 0.1 else 1
    if num_micro_batches < num_replicas:
        low = 0
    free = num_micro_batches - low * num_replicas
    ends = [0, *sorted(rng.randint(0, free) for _ in range(num_replicas - 1)), free]
    return [b - a + low for a, b in itertools.pairwise(ends)]


def _cuts(rng: Random, model: ModelSpec, depth: int) -> list[int]:
    return [0, *sorted(rng.sample(range(1, model.num_layers), depth - 1)), model.num_layers]


def _weights(rng: Random, degree: int) -> tuple[int, ...]:
    if rng.random() < 0.4:
        return (1,) * degree
    return tuple(rng.choice(_WEIGHTS) for _ in range(degree))


def _cut(rng: Random, model: ModelSpec, replica: ReplicaPlan, cuts: list[int] | None) -> ReplicaPlan:
    """The same groups with other layers."""
    if cuts is None or len(cuts) != len(replica.stages) + 1:
        cuts = _cuts(rng, model, len(replica.stages))
    stages = (
        replace(s, layer_start=a, layer_stop=b)
        for s, (a, b) in zip(replica.stages, itertools.pairwise(cuts), strict=True)
    )
    return replace(replica, stages=tuple(stages))


def _other_degrees(rng: Random, replica: ReplicaPlan) -> ReplicaPlan:
    """The same devices and layers in groups of other sizes."""
    ranks = [r for s in replica.stages for r in s.ranks]
    groups = _split(rng, ranks, len(replica.stages))
    stages = (
        replace(s, ranks=tuple(group), weights=_weights(rng, len(group)))
        for s, group in zip(replica.stages, groups, strict=True)
    )
    return replace(replica, stages=tuple(stages))


def _is_shared(plan: ParallelPlan, m: Migration) -> bool:
    here, there = plan.replicas[m.replica].stages[m.stage], plan.replicas[m.executor].stages[m.stage]
    return (here.layer_start, here.layer_stop) == (there.layer_start, there.layer_stop)


def _migrations(rng: Random, plan: ParallelPlan, at_least: int = 0) -> tuple[Migration, ...]:
    """Up to four units given to replicas with the same layers under the same stage number; none if there are none."""
    possible: dict[tuple[int, int, int], list[int]] = {}
    for (a, here), (b, there) in itertools.permutations(enumerate(plan.replicas), 2):
        for s in range(min(len(here.stages), len(there.stages))):
            if _is_shared(plan, Migration(a, s, 0, b)):
                for m in range(here.num_micro_batches):
                    possible.setdefault((a, s, m), []).append(b)
    chosen = rng.sample(sorted(possible), min(len(possible), rng.randint(at_least, 4)))
    return tuple(Migration(*unit, rng.choice(possible[unit])) for unit in sorted(chosen))
