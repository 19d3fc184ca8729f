"""Iteration level: only step times and lengths are known. DP 2 x PP 4, 1F1B; the prediction is the product's own
simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from benchmarks.detection.baselines import ChangePoint
from resihp_detect import IterationLevel, MatchedLevel, ScheduleTime, VerdictKind
from resihp_plan import CostModel, MicroBatchWork, ModelSpec, ParallelPlan, ReplicaPlan, StagePlan, program, simulate

WARMUP, FAULT_AT, STOP = 22, 70, 100
NOISE = 0.02
MATCHED = "ResiHP, plan known"
"""Its first rule: which stage explains the times?"""


@dataclass
class Result:
    """Of one rule at one slowdown of one device."""

    found: int = 0
    total: int = 0
    false_alarms: int = 0
    healthy_iterations: int = 0
    replica_named: int = 0
    """By the rule that knows the plan: the slow device's replica."""
    delays: list[int] = field(default_factory=list)
    """Iterations until found, the naming one included."""


@dataclass(frozen=True)
class Errors:
    """Mean absolute prediction error over the healthy iterations of one run, as a ratio."""

    all: float
    without_hiccups: float
    """Of the iterations whose seconds are those of the law, with its noise and drift."""
    num_hiccups: int


def make_plan() -> tuple[ParallelPlan, ModelSpec]:
    """One rank per place: members of a TP group are one place to the schedule."""
    model = ModelSpec(num_layers=8)
    replicas = tuple(
        ReplicaPlan(
            tuple(StagePlan(2 * s, 2 * s + 2, (4 * r + s,), (1,)) for s in range(4)),
            num_micro_batches=8,
        )
        for r in range(2)
    )
    return ParallelPlan(epoch=1, replicas=replicas), model


def run(
    pool: npt.NDArray[np.float64], slowdowns: tuple[float, ...], runs: int, rng: np.random.Generator
) -> tuple[dict[str, dict[float, Result]], list[Errors]]:
    """Rules -> slowdown -> result, and the prediction errors of every run."""
    plan, model = make_plan()
    guess = CostModel.for_model(model)
    truth = replace(guess, square_s=2.5 * guess.square_s)
    order = program(plan)
    names = (
        MATCHED,
        "ResiHP, plan not known",
        "change point + 25 % of predicted (paper)",
        "change point + 10 % of raw",
    )
    results = {name: {s: Result() for s in slowdowns} for name in names}
    errors = []
    for slowdown in slowdowns:
        for _ in range(runs):
            slow = int(rng.integers(0, 8))
            works, times, hiccups = [], [], []
            for i in range(1, STOP + 1):
                drawn = pool[rng.integers(0, len(pool), (2, 8))]
                work = tuple(tuple(MicroBatchWork(int(m[1]), int(m[2])) for m in replica) for replica in drawn)
                health = {slow: 1.0 / slowdown} if i >= FAULT_AT else None
                seconds = simulate(plan, order, work, truth, health=health).makespan_s
                seconds *= math.exp(rng.normal(0, NOISE)) * (1 + 0.02 * math.sin(i / 60))
                works.append(work)
                hiccups.append(rng.random() < 0.005)
                times.append(seconds * (rng.uniform(1.3, 2.0) if hiccups[-1] else 1.0))
            schedule = ScheduleTime(plan, guess)
            schedule.learn(works[:20], times[:20])
            predicted = [schedule.seconds(w) for w in works]
            healthy = slice(20, FAULT_AT - 1)
            off = np.abs(np.array(times[healthy]) / np.array(predicted[healthy]) - 1.0)
            hiccup = np.array(hiccups[healthy])
            errors.append(Errors(float(off.mean()), float(off[~hiccup].mean()), int(hiccup.sum())))
            effects = [schedule.effects(w) for w in works]
            _judge(results, slowdown, times, predicted, effects, schedule.places, slow)
    return results, errors


def _judge(
    results: dict[str, dict[float, Result]],
    slowdown: float,
    times: list[float],
    predicted: list[float],
    effects: list[tuple[float, ...]],
    places: tuple[str, ...],
    slow: int,
) -> None:
    level, matched = IterationLevel(), MatchedLevel(places)
    raw, paper = ChangePoint(0.1), ChangePoint(-0.99)  # the paper's change points are gated by the prediction instead
    names = list(results)
    was = [False] * len(names)
    hit, false, named, after = [False] * len(names), [0] * len(names), [False] * len(names), [0] * len(names)
    for i, (seconds, expected, effect) in enumerate(zip(times, predicted, effects, strict=True), 1):
        kinds = [v.kind for v in level.observe(i, seconds, expected)]
        alarms = [v for v in matched.observe(i, seconds, expected, effect) if v.kind is VerdictKind.JOB_SLOW]
        if alarms and i >= FAULT_AT and not hit[0]:
            named[0] = str(alarms[0].device).startswith(f"R{slow // 4}.")
        changed = bool(paper.see(np.array([[seconds]]))[0, 0])
        now = [
            bool(alarms),
            VerdictKind.JOB_SLOW in kinds,
            changed and seconds > 1.25 * expected,
            bool(raw.see(np.array([[seconds]]))[0, 0]),
        ]
        for n in range(len(names)):
            fresh = now[n] and not was[n]
            if i < FAULT_AT:
                false[n] += fresh
            elif fresh and i < FAULT_AT + 20:
                after[n] = after[n] if hit[n] else i - FAULT_AT + 1
                hit[n] = True
        was = now
    for n, name in enumerate(names):
        result = results[name][slowdown]
        result.total += 1
        result.found += hit[n]
        result.false_alarms += false[n]
        result.replica_named += named[n]
        result.delays += [after[n]] if hit[n] else []
        result.healthy_iterations += FAULT_AT - WARMUP - 1
