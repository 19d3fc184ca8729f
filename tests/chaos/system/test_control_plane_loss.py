"""SIGKILL of detector, scheduler, nats-server while training is healthy: nobody waits; the next fault is handled."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.control_plane_loss import VICTIMS, measure

WINDOW = 12
HANG_S = 5.0
"""A bound on hanging, not a timing: many iterations long, and shorter than any wait for a service would be."""


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_training_outlives_the_control_plane_and_the_next_fault_is_handled() -> None:
    loss = await measure(WINDOW, controls=(), extra=["--dtype", "float64", "--verify"])
    assert set(loss.after_s) == set(VICTIMS)
    assert all(len(steps) >= WINDOW - 1 for steps in loss.after_s.values())
    assert max(loss.all_after_s) < statistics.median(loss.baseline_s) + HANG_S
    (recovery,) = loss.document["recoveries"]
    assert recovery["rank"] == 3
    assert recovery["proof"]
    assert all(recovery["proof"].values())
    assert loss.document["committed"] == loss.document["iterations"]
    assert loss.document["samples"]["lost"] == loss.document["samples"]["repeated"] == 0
    assert loss.document["parity"]["max_abs_diff"] <= 1e-9
