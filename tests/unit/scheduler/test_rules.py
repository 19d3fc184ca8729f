"""The rules of decision on their own: their examples, and what they promise in general."""

from __future__ import annotations

import doctest
import importlib
import math
import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resihp_scheduler import rules
from resihp_scheduler.rules.breaker import Breaker, trips
from resihp_scheduler.rules.durations import COMMUNICATION, COMPUTE
from resihp_scheduler.rules.probation import Probation, standing
from resihp_scheduler.rules.ski_rental import Offer, horizon_s, weigh
from resihp_scheduler.rules.speeds import MAX_ERROR, PATIENCE, Track, differs, of_interval

MODULES = [m.name for m in pkgutil.iter_modules(rules.__path__, "resihp_scheduler.rules.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
    assert result.attempted > 0


@given(st.floats(0, 1e6), st.floats(1, 1e6))
def test_the_longer_a_slowdown_has_lasted_the_longer_it_goes_on(age_s: float, more_s: float) -> None:
    for kind in (COMPUTE, COMMUNICATION):
        rest = kind.remaining_s(age_s)
        assert kind.mean_s <= rest <= kind.remaining_s(age_s + more_s) + 1e-6 <= kind.long_mean_s + 1e-5


@given(
    stay=st.floats(100, 1000),
    faster=st.floats(1.03, 4.0),
    change_s=st.floats(0.01, 600),
    lasts_s=st.floats(0.1, 1e5),
)
def test_nobody_pays_more_than_twice_the_price_of_hindsight(
    stay: float, faster: float, change_s: float, lasts_s: float
) -> None:
    """Tokens lost against a healthy job, in units of time: rent until the change, the change, nothing after it."""
    offer = Offer(stay, stay * faster, change_s)
    rent = 1.0 - 1.0 / faster
    age_s, cost_s = 0.0, math.inf
    while True:
        advice = weigh(offer, horizon_s=horizon_s(0.0, age_s, 1e9), age_s=age_s, left_s=1e9)
        if advice.action == "act" or age_s > lasts_s:
            cost_s = rent * min(age_s, lasts_s) + (change_s if age_s <= lasts_s else 0.0)
            break
        assert advice.action == "wait"
        assert advice.again_in_s is not None
        age_s += max(advice.again_in_s, 1e-3)
    hindsight_s = min(rent * lasts_s, change_s)
    assert cost_s <= 2.0 * hindsight_s + 0.01


def test_an_offer_that_cannot_pay_off_is_left() -> None:
    assert weigh(Offer(900.0, 1000.0, 5.0), horizon_s=600.0, age_s=0.0, left_s=40.0).action == "stay"
    assert weigh(Offer(1000.0, 1010.0, 0.0), horizon_s=1e9, age_s=0.0, left_s=1e9).action == "stay"
    assert weigh(Offer(1000.0, 900.0, 0.0), horizon_s=1e9, age_s=0.0, left_s=1e9).action == "stay"


def test_relapses_double_the_probation_and_time_forgives() -> None:
    rule = Probation(base_s=10.0, longest_s=100.0, memory_s=1000.0)
    assert [rule.length_s(n) for n in range(1, 7)] == [0.0, 10.0, 20.0, 40.0, 80.0, 100.0]
    assert standing([0.0, 50.0, 100.0], 100.0, rule).share == 0.0
    assert standing([0.0, 50.0, 100.0], 111.0, rule).share == 0.5
    assert standing([0.0, 50.0, 100.0], 120.0, rule).share == 1.0
    assert standing([0.0, 50.0, 1500.0], 1500.0, rule).share == 1.0
    assert "a lemon" in standing([1.0, 2.0, 3.0, 4.0], 4.0).note


def test_a_graded_speed_lies_between_slow_and_measured() -> None:
    half = standing([0.0, 100.0], 135.0)
    assert half.speed(0.5, 1.0) == 0.75
    assert half.again_in_s == 25.0


def test_breaker() -> None:
    rule = Breaker(window_s=60.0, most_changes=3)
    assert trips([0.0, 10.0, 20.0], 0, 8, 30.0, rule)
    assert not trips([0.0, 10.0, 20.0], 0, 8, 75.0, rule)
    assert not trips([], 2, 8, 0.0, rule)
    assert trips([], 3, 8, 0.0, rule)
    assert not trips([], 3, 64, 0.0, rule)


def test_a_speed_is_known_when_its_error_is_small_or_patience_ends() -> None:
    assert of_interval(0.5, 0.49, 0.51).is_known
    assert not of_interval(0.5, 0.4, 0.6).is_known
    assert not of_interval(0.5, None, None).is_known
    noisy = Track()
    for p in (0.3, 0.8, 0.4, 0.7):
        noisy.add(p)
    estimate = noisy.estimate()
    assert estimate is not None
    assert estimate.error > MAX_ERROR
    assert not estimate.is_known
    for p in [0.3, 0.8] * PATIENCE:
        noisy.add(p)
    estimate = noisy.estimate()
    assert estimate is not None
    assert estimate.is_known
    assert not differs(0.5, 0.53)
    assert differs(0.5, 0.56)
