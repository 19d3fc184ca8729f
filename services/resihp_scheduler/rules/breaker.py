"""Stops automatic changes when they come in masses: then something else is wrong, and a person must look.

Losses are acted on all the same: without a new plan the job would stand still.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from resihp_messages.thresholds import THRESHOLDS


@dataclass(frozen=True)
class Breaker:
    """Limits within a window of seconds."""

    window_s: float = THRESHOLDS["breaker_window_s"].default
    most_changes: int = round(THRESHOLDS["breaker_changes"].default)
    """Automatic changes of plan."""
    most_slow_share: float = THRESHOLDS["breaker_slow_share"].default
    """Of the devices slow at once (but at least `fewest_slow`): rather the workload, the network or the detector."""
    fewest_slow: int = 3


def trips(changes_s: Collection[float], num_slow: int, num_alive: int, now_s: float, rule: Breaker) -> str:
    """Why the breaker trips, or an empty text. `changes_s`: when the last automatic changes were issued.

    >>> trips([0, 10, 20, 30, 40, 50], 1, 8, 60.0, Breaker())
    '6 automatic changes within 120 s'
    >>> trips([], 3, 8, 60.0, Breaker()), trips([], 2, 4, 60.0, Breaker())
    ('3 of 8 devices are slow at once', '')
    """
    recent = sum(1 for t in changes_s if now_s - t <= rule.window_s)
    if recent >= rule.most_changes:
        return f"{recent} automatic changes within {rule.window_s:.0f} s"
    if num_slow >= max(rule.fewest_slow, rule.most_slow_share * num_alive):
        return f"{num_slow} of {num_alive} devices are slow at once"
    return ""
