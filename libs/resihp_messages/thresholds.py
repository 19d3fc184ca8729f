"""Numbers of detection and of the decision rules that an operator may change for a job: names, defaults, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ThresholdName = Literal[
    "min_gain",
    "hysteresis",
    "settled_s",
    "probation_s",
    "breaker_changes",
    "breaker_window_s",
    "breaker_slow_share",
    "detect_scale",
]


@dataclass(frozen=True)
class Threshold:
    """One of them. `low` and `high` are allowed values, too."""

    default: float
    low: float
    high: float
    meaning: str


THRESHOLDS: Mapping[ThresholdName, Threshold] = {
    "min_gain": Threshold(0.02, 0.0, 10.0, "a plan that is predicted to be faster by less than this is not taken"),
    "hysteresis": Threshold(0.08, 0.0, 1.0, "a speed that differs by less from the planned one changes nothing"),
    "settled_s": Threshold(10.0, 0.0, 86_400.0, "a slowness must have lasted this long (real clock only)"),
    "probation_s": Threshold(60.0, 0.0, 86_400.0, "a device that relapsed must stay healthy this long; doubles"),
    "breaker_changes": Threshold(6.0, 1.0, 1000.0, "so many automatic changes within the window trip the breaker"),
    "breaker_window_s": Threshold(120.0, 1.0, 86_400.0, "the breaker's window"),
    "breaker_slow_share": Threshold(0.34, 0.0, 1.0, "if this share of the devices is slow at once, the breaker trips"),
    "detect_scale": Threshold(1.0, 0.5, 10.0, "how slow a device or link must be to be called slow, times this"),
}


DETECTION = frozenset[ThresholdName]({"detect_scale"})
"""Those by which the detector judges; the others are the scheduler's."""


def check(name: ThresholdName, value: float | None) -> None:
    """Raises ValueError for a value outside the limits; None stands for the default."""
    limits = THRESHOLDS[name]
    if value is not None and not limits.low <= value <= limits.high:
        raise ValueError(f"{name} must lie between {limits.low:g} and {limits.high:g}, not {value:g}")


def effective(changed: Mapping[str, float]) -> dict[ThresholdName, float]:
    """Every threshold: the changed value, else the default."""
    return {name: changed.get(name, limits.default) for name, limits in THRESHOLDS.items()}
