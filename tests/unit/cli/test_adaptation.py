"""Throughput against the bound, worked out from a run's iterations."""

from __future__ import annotations

from typing import Any

import pytest

from resihp_cli.adaptation import adaptation, incidents
from resihp_gateway.models import IncidentView, IterationView
from resihp_messages import JobSpec
from support.store import NOON, incident


def run(rates: dict[int, float]) -> list[IterationView]:
    return [
        IterationView(iteration=k, epoch=1, step_s=1000.0 / rate, tokens=1000, samples_expected=1, samples_once=1)
        for k, rate in rates.items()
    ]


def job(*faults: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate({"iterations": 60, "clock": {"virtual": True}, "faults": list(faults)})


SLOW = {"kind": "slow", "rank": 5, "iteration": 20, "factor": 0.5}


def test_a_slow_device_that_is_planned_around_and_recovers() -> None:
    rates = {k: 1000.0 if k < 20 else 600.0 if k < 26 else 900.0 if k < 50 else 990.0 for k in range(1, 61)}
    (found,) = adaptation(job(SLOW), run(rates))
    assert found["healthy_tokens_per_s"] == 1000.0
    assert found["bound_tokens_per_s"] == 937.5
    assert found["iterations_to_recover"] == 4  # iterations 24 to 28 have a median of 900
    assert found["at_15_iterations_of_bound"] == pytest.approx(0.96)
    assert found["at_the_end_of_healthy"] == pytest.approx(0.99)


def test_nobody_adapts() -> None:
    (found,) = adaptation(job(SLOW), run({k: 1000.0 if k < 20 else 600.0 for k in range(1, 61)}))
    assert found["iterations_to_recover"] is None
    assert found["at_15_iterations_of_bound"] == pytest.approx(0.64)


def test_faults_add_up() -> None:
    kill = {"kind": "kill", "rank": 3, "iteration": 40}
    slow, lost = adaptation(job(SLOW, kill), run(dict.fromkeys(range(1, 61), 1000.0)))
    assert (slow["bound_tokens_per_s"], lost["bound_tokens_per_s"]) == (937.5, 812.5)
    assert adaptation(job(), run({1: 1.0})) == []


def test_incidents_are_named_like_their_events() -> None:
    verdict = {"fault": "device_slow", "p": 0.5, "p_low": 0.49, "p_high": 0.51, "confidence": 0.99}
    slow = incident(
        "demo",
        kind="device_slow",
        ranks=(5,),
        verdict=verdict,
        evidence={"iteration": 32, "first_iteration": 30},
        closed_at=NOON,
        resolution="recovered",
    )
    (found,) = incidents([IncidentView.model_validate(slow)])
    assert (found["kind"], found["rank"], found["detected_iteration"], found["p"]) == ("DeviceSlow", 5, 32, 0.5)
    assert (found["confidence"], found["resolution"]) == (0.99, "recovered")
