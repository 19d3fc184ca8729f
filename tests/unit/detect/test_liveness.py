"""The adaptive bound on silence."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_detect import BeatIntervals, LivenessConfig, confidence, normal_tail_phi


def fed(intervals: list[float], **config: float) -> BeatIntervals:
    beats = BeatIntervals(LivenessConfig(**config))  # type: ignore[arg-type]
    for interval in intervals:
        beats.observe(interval)
    return beats


def test_regular_beats_leave_the_floor_in_force() -> None:
    beats = fed([0.25] * 100, floor_s=4.0)
    assert beats.bound_s() == 4.0
    assert beats.bound_s(1.5) == 1.5


def test_a_pause_that_was_survived_raises_the_bound_until_it_leaves_the_window() -> None:
    beats = fed([0.25] * 50 + [3.0], floor_s=4.0, window=100)
    assert beats.bound_s() == 6.0
    for _ in range(100):
        beats.observe(0.25)
    assert beats.bound_s() == 4.0


def test_few_samples_mean_more_patience() -> None:
    assert fed([], floor_s=4.0).bound_s() == 8.0
    assert fed([0.25] * 7, floor_s=4.0).bound_s() == 8.0
    assert fed([0.25] * 8, floor_s=4.0).bound_s() == 4.0


def test_one_outage_cannot_blind_the_detector() -> None:
    assert fed([0.25] * 20 + [3600.0], floor_s=1.0).bound_s() == 8.0


def test_irregular_beats_raise_the_bound_by_their_deviation() -> None:
    rng = random.Random(1)
    intervals = [max(0.0, rng.gauss(1.0, 0.3)) for _ in range(500)]
    beats = fed(intervals, floor_s=0.5, window=500, margin=1.0)
    assert beats.mean_s == pytest.approx(1.0, abs=0.05)
    assert beats.bound_s() == pytest.approx(beats.mean_s + 5.612 * beats.deviation_s, rel=1e-3)


def test_phi_is_the_tail_of_the_normal_law() -> None:
    beats = fed([0.9, 1.1] * 50, floor_s=1.0)
    assert beats.phi(1.0) == pytest.approx(-math.log10(0.5))
    assert beats.phi(1.0 + 1.2816 * 0.1) == pytest.approx(1.0, abs=1e-3)  # P(Z > 1.2816) = 0.1
    assert fed([1.0] * 3).phi(100.0) == 0.0  # no opinion yet


def test_phi_is_finite_and_monotone_where_probabilities_underflow() -> None:
    values = [normal_tail_phi(x) for x in (0.0, 5.0, 29.9, 30.0, 30.1, 100.0, 1e6)]
    assert values == sorted(values)
    assert all(map(math.isfinite, values))
    assert values[3] == pytest.approx(values[2], rel=0.01)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_values_that_are_no_interval_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not an interval"):
        fed([0.25] * 10).observe(bad)


@pytest.mark.parametrize(
    "bad", [{"floor_s": 0}, {"margin": 0.5}, {"cap_ratio": 1.0}, {"min_samples": 1}, {"phi": 0}, {"window": 4}]
)
def test_constants_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="does not hold"):
        LivenessConfig(**bad)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e4), max_size=300), st.floats(0.01, 100))
def test_the_bound_stays_between_floor_and_cap(intervals: list[float], floor_s: float) -> None:
    beats = fed(intervals)
    assert floor_s <= beats.bound_s(floor_s) <= 8.0 * floor_s
    assert math.isfinite(beats.phi(10.0))


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 3.9), min_size=20, max_size=300))
def test_a_repeated_gap_of_the_window_is_never_a_death(intervals: list[float]) -> None:
    """Whatever gap the sender has survived, twice as long is still allowed (up to the cap)."""
    beats = fed(intervals, floor_s=4.0)
    assert beats.bound_s() >= min(32.0, 2.0 * beats.longest_s)


def test_heavy_tailed_beats_raise_few_alarms_where_a_fixed_bound_raises_many() -> None:
    """Log-normal jitter as on a busy host, 30 senders x 1,000 beats; the bound stays below the cap."""
    rng = random.Random(7)
    fixed, adaptive, bounds = 0, 0, []
    for _ in range(30):
        beats = BeatIntervals(LivenessConfig(floor_s=1.0))
        for _ in range(1000):
            interval = 0.25 * rng.lognormvariate(0.0, 0.5)
            fixed += interval > 1.0
            adaptive += interval > beats.bound_s()
            beats.observe(interval)
        bounds.append(beats.bound_s())
    assert fixed > 50
    assert adaptive <= fixed / 20
    assert max(bounds) < 4.0


def test_confidence() -> None:
    assert confidence(0.0) == 0.0
    assert confidence(1.0) == pytest.approx(0.9)
    assert 0.999 < confidence(300.0) < 1.0
