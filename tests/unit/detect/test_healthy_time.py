"""Regression and order statistics under detection, against brute force and the generating law."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_detect import (
    assembly,
    device_level,
    fingerprints,
    healthy_time,
    iteration_level,
    link_level,
    localise,
    peers,
    probe_level,
    redone,
)
from resihp_detect.healthy_time import HealthyTime, fit_healthy_time
from resihp_detect.peers import peer_medians, spread

MODULES = [
    assembly, device_level, fingerprints, healthy_time, iteration_level, link_level, localise, peers, probe_level,
    redone,
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", [True, False])
def test_predicts_at_the_noise_floor_in_any_unit(packed: bool) -> None:
    rng = np.random.default_rng(3)
    tokens = np.full(400, 32768.0) if packed else rng.uniform(4e3, 6e4, 400)
    work = np.stack([np.ones(400), tokens, tokens * rng.uniform(500, 30000, 400)], axis=1)
    clean = 4e-3 + 1.2e-6 * work[:, 1] + 7e-11 * work[:, 2]
    for unit in (1.0, 1000.0):  # seconds, milliseconds
        fit = fit_healthy_time(work[:200], unit * clean[:200] * np.exp(rng.normal(0, 0.03, 200)))
        error = np.abs(fit.predict(work[200:]) / (unit * clean[200:]) - 1)
        assert error.mean() < 0.01
        assert fit.sigma == pytest.approx(0.03, rel=0.3)
    low, high = fit.interval(work[200:])
    inside = (low < 1000 * clean[200:] * np.exp(rng.normal(0, 0.03, 200))) & (1000 * clean[200:] < high)
    assert inside.mean() > 0.88


def test_unusable_rows_are_left_out_and_too_few_are_refused() -> None:
    work = np.tile([1.0, 10.0, 100.0], (8, 1))
    seconds = np.array([1.0, math.nan, math.inf, -1.0, 0.0, 1.0, 1.0, 1.0])
    work[7, 1] = math.inf
    assert fit_healthy_time(work, seconds).predict(work[0]) == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(ValueError, match="at least 3 usable rows, there are 2"):
        fit_healthy_time(work[:6], seconds[:6])


def test_scaling_carries_a_fit_to_another_share_of_the_work() -> None:
    fit = HealthyTime((0.1, 1e-6, 1e-10), 0.02)
    work = np.array([8.0, 1000.0, 1e6])
    assert fit.scaled(0.5).predict(work) == pytest.approx(0.5 * fit.predict(work))
    assert HealthyTime.from_dict(fit.as_dict()) == fit


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.just(math.nan), st.integers(-5, 5).map(float)), min_size=1, max_size=9))
def test_peer_medians_equal_brute_force(row: list[float]) -> None:
    values = np.array([row])
    group, peer, count = peer_medians(values)
    known = [v for v in row if not math.isnan(v)]
    assert count[0] == len(known)
    assert known == [] or group[0] == np.median(known)
    for i, value in enumerate(row):
        others = [v for j, v in enumerate(row) if j != i and not math.isnan(v)]
        if math.isnan(value) or not others:
            assert math.isnan(peer[0, i])
        else:
            assert peer[0, i] == np.median(others)


def test_spread_is_robust() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.02, (1, 201))
    values[0, :40] += 5.0
    assert spread(values)[0] == pytest.approx(0.02, rel=0.6)
