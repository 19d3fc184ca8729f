"""How a run met slow and lost devices: incidents, what was decided, and throughput against the bound. Pure.

The bound is the healthy throughput times the share of speed that the devices have left (sum of p over all devices).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from resihp_gateway.decision_view import DecisionView
from resihp_gateway.models import IncidentView, IterationView
from resihp_messages import JobSpec, ScriptedFault

KINDS = {
    "worker_lost": "WorkerLost",
    "worker_frozen": "WorkerFrozen",
    "node_lost": "NodeLost",
    "link_broken": "LinkLost",
    "device_slow": "DeviceSlow",
}
"""Kinds of incidents by the name of the event that opened them."""
DECIDED = (
    *("id", "trigger", "action", "outcome", "reason", "difference", "predicted_tokens_per_s", "stay_tokens_per_s"),
    *("bound_tokens_per_s", "achieved_tokens_per_s", "planning_s", "reconfiguration_id", "alternatives"),
)
WINDOW = 5
"""Iterations whose median is one reading of the throughput."""
ENOUGH = 0.93
"""Of the bound: from then on a run counts as recovered."""


def incidents(found: Sequence[IncidentView]) -> list[dict[str, Any]]:
    """Every fault as it was noticed."""
    return [
        {
            "id": i.id,
            "kind": KINDS.get(i.kind, i.kind),
            "rank": i.ranks[0] if i.ranks else None,
            "ranks": list(i.ranks),
            "detected_iteration": i.evidence.get("iteration"),
            "first_iteration": i.evidence.get("first_iteration"),
            "p": i.verdict.get("p"),
            "p_low": i.verdict.get("p_low"),
            "p_high": i.verdict.get("p_high"),
            "confidence": i.verdict.get("confidence"),
            "resolution": i.resolution,
        }
        for i in found
    ]


def decided(found: Sequence[DecisionView]) -> list[dict[str, Any]]:
    """What was weighed, oldest first."""
    return [{name: getattr(d, name) for name in DECIDED} for d in reversed(found)]


def adaptation(spec: JobSpec, iterations: Sequence[IterationView]) -> list[dict[str, Any]]:
    """For every scripted slow or deadly fault that is the only one at its time: throughput before, bound, and after."""
    rates = {i.iteration: i.tokens / i.step_s for i in iterations if i.step_s}
    faults = sorted(spec.faults, key=lambda f: f.iteration)
    healthy = _reading(rates, 3, faults[0].iteration) if faults else None
    if healthy is None:
        return []
    return [_met(spec, faults, index, rates, healthy) for index in range(len(faults))]


def _met(
    spec: JobSpec, faults: Sequence[ScriptedFault], index: int, rates: dict[int, float], healthy: float
) -> dict[str, Any]:
    fault = faults[index]
    until = faults[index + 1].iteration if index + 1 < len(faults) else spec.iterations + 1
    left = {f.rank: f.factor if f.kind == "slow" else 0.0 for f in faults[: index + 1]}
    bound = healthy * (1.0 - sum(1.0 - p for p in left.values()) / spec.parallel.num_devices)
    recovered = next(
        (
            k
            for k in range(fault.iteration, until - WINDOW + 1)
            if (rate := _reading(rates, k, k + WINDOW)) is not None and rate >= ENOUGH * bound
        ),
        None,
    )
    # The first reading may still contain healthy iterations; whether it lasts is seen at the 15th.
    settled = _reading(rates, fault.iteration + 16 - WINDOW, min(until, fault.iteration + 16))
    last = _reading(rates, max(fault.iteration, until - 2 * WINDOW), until)
    return {
        "fault": fault.model_dump(mode="json"),
        "healthy_tokens_per_s": healthy,
        "bound_tokens_per_s": bound,
        "iterations_to_recover": None if recovered is None else recovered - fault.iteration,
        "at_15_iterations_of_bound": None if settled is None else settled / bound,
        "at_the_end_of_healthy": None if last is None else last / healthy,
    }


def _reading(rates: dict[int, float], start: int, stop: int) -> float | None:
    """Median tokens/s of the iterations in [start, stop)."""
    found = [rates[k] for k in range(start, stop) if k in rates]
    return median(found) if found else None
