"""Throughput: observed, healthy, and the bound that no plan can beat."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

from resihp_gateway.picture import HEALTHY_P
from resihp_plan.plan import ParallelPlan
from resihp_store import IterationRecord, ReconfigurationRecord

SKIPPED = 2
"""Iterations at the start that pay for warming up."""
SAMPLE = 50
RECENT = 5


def healthy_rate(first_iterations: Sequence[IterationRecord]) -> float | None:
    """Measured: the median tokens/s of the first plan's iterations after the warm-up; None before there are three."""
    rates = [i.tokens_per_s for i in first_iterations[SKIPPED : SKIPPED + SAMPLE] if i.step_s > 0]
    return statistics.median(rates) if len(rates) >= 3 else None


def recent_rate(points: Sequence[Sequence[float | None]]) -> float | None:
    """Mean tokens/s of the newest points (iteration, epoch, tokens/s, ...)."""
    known = [p[2] for p in points[-RECENT:] if p[2]]
    return statistics.harmonic_mean(known) if known else None


def bounds(
    plans: Sequence[ParallelPlan], changes: Sequence[ReconfigurationRecord], healthy: float | None
) -> dict[int, float]:
    """Epoch -> healthy throughput times the share of device speed that was left when its plan was made.

    The share is the planner's own; of changes that were recorded without it, the share of devices.
    """
    if healthy is None or not plans:
        return {}
    told = {c.new_epoch: c.speed_share for c in changes if c.speed_share is not None}
    size = len(plans[0].world)
    return {p.epoch: healthy * min(1.0, told.get(p.epoch, len(p.world) / size)) for p in plans}


def bound_now(
    healthy: float | None,
    num_devices: int,
    plan: ParallelPlan,
    scores: Mapping[int, float],
    alive: Collection[int],
    *,
    shares_cores: bool = False,
) -> float | None:
    """Healthy throughput times the sum of p of the devices that are there, over the number of all devices. What is
    shown as healthy counts as 1: the noise of a score is no loss. Of workers that share cores, others get what one
    leaves."""
    if healthy is None or not num_devices:
        return None
    if shares_cores:
        return healthy if set(plan.world) & set(alive) else 0.0
    known = (scores.get(rank, 1.0) for rank in plan.world if rank in alive)
    total = sum(1.0 if p >= HEALTHY_P else p for p in known)
    return healthy * total / num_devices
