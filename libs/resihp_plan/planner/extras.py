"""Candidates beyond the search over groups: what other policies would do, exchanged units, other schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from resihp_plan.plan import ParallelPlan, Schedule
from resihp_plan.planner import baselines
from resihp_plan.planner.baselines import Groups
from resihp_plan.planner.effort import Effort, Switches
from resihp_plan.planner.polish import polish
from resihp_plan.planner.shape import Shape
from resihp_plan.planner.space import Space

MANY = 32
"""Replicas from which on candidates that take quadratic time are left out."""


@dataclass(frozen=True)
class Found:
    """A shape with its exact step time; `name` says how it came about."""

    name: str
    shape: Shape
    step_s: float


def rivals(plan: ParallelPlan, space: Space, nominal: Space) -> list[Found]:
    """Plans of policies that do not exchange units; for very many replicas none."""
    if len(plan.replicas) > MANY:
        return []
    candidates = (
        ("micro-batches by speed", baselines.static(plan, space, by_speed=True)),
        ("intact replicas", baselines.restart(plan, space)),
        ("shorter replicas", baselines.oobleck(plan, space, nominal)),
        ("shorter replicas, by speed", baselines.oobleck(plan, space, nominal, by_speed=True)),
    )
    return [Found(name, s, space.step_s(s)) for name, s in candidates if s is not None and space.fits(s)]


def exchanges(
    plan: ParallelPlan,
    groups: Groups,
    space: Space,
    best_s: float,
    effort: Effort,
    *,
    with_rivals: bool,
) -> list[Found]:
    """Shapes with exchanged units that are faster than `best_s`. A lower bound of their time decides which are
    simulated, so none is missed while the effort lasts."""
    if effort.exchanged == 0 or len(plan.replicas) < 2 or len(plan.replicas) > MANY:
        return []
    pace = [best_s]

    def hopeful(seconds: float) -> bool:
        return seconds < min(pace)

    tuned = baselines.layers_of(plan)[0]
    wanted = [("units exchanged", s) for s in baselines.exchanging(space, groups, tuned, hopeful, effort.deltas)]
    if with_rivals:
        if effort.deltas:
            wanted += [("powers of two, units exchanged", s) for s in baselines.resihp_paper(plan, space, hopeful)]
        for by_speed in (False, True):
            shape = baselines.recycle(plan, space, by_speed=by_speed)
            if shape is not None:
                wanted.append(("units rerouted", shape))
    found = []
    by_bound = sorted(((space.least_s(s), i) for i, (_, s) in enumerate(wanted) if _runnable(s)))
    for bound, i in by_bound[: effort.exchanged]:
        if not hopeful(bound):
            break
        name, shape = wanted[i]
        seconds = space.step_s(shape)
        if hopeful(seconds):
            found.append(Found(name, shape, seconds))
            pace.append(seconds)
    return found


def _runnable(shape: Shape) -> bool:
    """Every place has somebody, even if nothing runs there."""
    return all(r >= 0 for p in shape.pipelines for g in p for r in g.ranks)


def reschedule(
    found: Sequence[Found], schedules: Sequence[Schedule], space: Space, effort: Effort, switches: Switches
) -> list[Found]:
    """The best few under other schedules, where memory allows."""
    results = []
    for f in found[: effort.rescheduled]:
        for schedule in schedules:
            shape = replace(f.shape, schedule=schedule)
            if schedule is f.shape.schedule or not space.fits(shape):
                continue
            if shape.migrations:
                continue  # were tried under all of them
            if switches.polish and effort.polished > 1:
                shape = polish(space, shape, rounds=effort.polish_rounds)
            results.append(Found(f"{f.name}, {schedule}", shape, space.step_s(shape)))
    return results
