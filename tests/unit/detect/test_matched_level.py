"""Iteration times and the plan: which stage is slow?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from resihp_detect import MatchedLevel, ScheduleTime, Verdict, VerdictKind
from resihp_plan import CostModel, MicroBatchWork, Work
from support.plans import DEMO_MODEL, demo_plan

PLACES = ("R0.S0", "R0.S1", "R1.S0", "R1.S1")


def watch(seed: int, iterations: int, slow: dict[int, int]) -> list[Verdict]:
    """`slow`: iteration -> index of the place that is slow from then on (-1: none). Either replica may be critical."""
    rng, level, found, who = np.random.default_rng(seed), MatchedLevel(PLACES), [], -1
    for i in range(1, iterations + 1):
        who = slow.get(i, who)
        critical = int(rng.integers(2))
        effects = [0.08 * rng.uniform(0.5, 1.0) if n // 2 == critical else 0.0 for n in range(4)]
        ratio = math.exp(rng.normal(effects[who] if who >= 0 else 0.0, 0.02))
        found += level.observe(i, ratio * (rng.uniform(1.3, 2.0) if rng.random() < 0.005 else 1.0), 1.0, effects)
    return found


@pytest.mark.parametrize("who", range(4))
def test_the_right_replica_is_named_and_cleared(who: int) -> None:
    slow, clear = watch(who, 160, {60: who, 110: -1})
    assert (slow.kind, clear.kind) == (VerdictKind.JOB_SLOW, VerdictKind.JOB_RECOVERED)
    assert str(slow.device).startswith(f"R{who // 2}.")
    assert PLACES[who] in slow.evidence["suspects"]
    assert 60 <= slow.iteration <= 80
    assert 110 <= clear.iteration <= 135


def test_hiccups_and_noise_of_healthy_iterations_raise_nothing() -> None:
    assert [v for seed in range(10) for v in watch(seed, 300, {})] == []


def test_broken_times_are_missing_and_wrong_effects_refused() -> None:
    level = MatchedLevel(PLACES)
    assert level.observe(1, math.nan, 1.0, [0.0] * 4) == ()
    assert level.observe(1, 1.0, 0.0, [0.0] * 4) == ()
    with pytest.raises(ValueError, match="4 effects expected"):
        level.observe(1, 1.0, 1.0, [0.0] * 3)


def test_effects_come_from_the_plan() -> None:
    schedule = ScheduleTime(demo_plan(), CostModel.for_model(DEMO_MODEL))
    assert schedule.places == PLACES
    heavy, light = MicroBatchWork.of([128]), MicroBatchWork.of([16] * 4)
    work: Work = ((heavy,) * 4, (light,) * 4)
    effects = dict(zip(PLACES, schedule.effects(work), strict=True))
    assert min(effects["R0.S0"], effects["R0.S1"]) > 0.02  # on the critical path
    assert max(effects["R1.S0"], effects["R1.S1"]) < 0.01  # the other replica waits anyway
