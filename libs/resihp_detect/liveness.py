"""How long may a sender of beats be silent before it counts as dead? An accrual detector with an adaptive bound.

Suspicion grows with silence on a scale that means the same for every sender (Hayashibara, Defago, Yared, Katayama, "The
phi accrual failure detector", SRDS 2004): with the intervals between beats taken as normal with mean m and deviation s,

    phi(t) = -log10 P(next beat comes later than t after the last) = -log10( erfc((t - m) / (s sqrt 2)) / 2 ).

`phi = 8` means one wrong suspicion in 10^8 beats *if intervals were normal*. They are not: a busy host or a garbage
collection now and then makes a gap that no normal law expects. So the bound is

    T = min(cap, max(floor, m + z(phi) s, margin * longest interval in the window)),     z(8) = 5.61,

never below the `floor` that the user chose (`timeouts.node_s`), above every gap that this sender has already survived,
and never above `cap`, so that one outage cannot blind the detector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class LivenessConfig:
    """Constants of the bound. Seconds, ratios, counts."""

    floor_s: float = 4.0
    phi: float = 8.0
    margin: float = 2.0
    """Times the longest interval seen."""
    cap_ratio: float = 8.0
    """cap / floor."""
    window: int = 256
    """Intervals remembered."""
    min_samples: int = 8
    """With fewer intervals the bound is `warmup_ratio * floor`."""
    warmup_ratio: float = 2.0
    min_deviation_ratio: float = 0.1
    """s is at least this share of m: very regular beats must not make the detector nervous."""

    def __post_init__(self) -> None:
        rules = {
            "floor_s > 0": self.floor_s > 0,
            "phi > 0": self.phi > 0,
            "margin >= 1": self.margin >= 1,
            "cap_ratio >= warmup_ratio >= 1": self.cap_ratio >= self.warmup_ratio >= 1,
            "2 <= min_samples <= window": 2 <= self.min_samples <= self.window,
            "min_deviation_ratio > 0": self.min_deviation_ratio > 0,
        }
        for rule, holds in rules.items():
            if not holds:
                raise ValueError(f"liveness: {rule} does not hold in {self}")


class BeatIntervals:
    """Intervals between the beats of one sender, and what silence they make plausible.

    >>> beats = BeatIntervals(LivenessConfig(floor_s=1.0))
    >>> for _ in range(100):
    ...     beats.observe(0.25)
    >>> beats.bound_s(), beats.phi(0.3) < 2, beats.phi(1.0) > 100
    (1.0, True, True)
    >>> beats.observe(3.0)  # it paused, and lived
    >>> beats.bound_s()
    6.0
    """

    def __init__(self, config: LivenessConfig) -> None:
        self._config = config
        self._z = NormalDist().inv_cdf(1.0 - 10.0**-config.phi)
        self._ring = np.zeros(config.window)
        self._observed = 0
        self.mean_s = 0.0
        """0 without samples."""
        self.deviation_s = 0.0
        """At least `min_deviation_ratio` of the mean."""
        self.longest_s = 0.0

    @property
    def num_samples(self) -> int:
        return min(self._observed, self._config.window)

    def observe(self, interval_s: float) -> None:
        """One interval. Values that are negative or not finite are refused: ValueError."""
        if not math.isfinite(interval_s) or interval_s < 0:
            raise ValueError(f"not an interval: {interval_s}")
        self._ring[self._observed % self._config.window] = interval_s
        self._observed += 1
        seen = self._ring[: self.num_samples]
        self.mean_s, self.longest_s = float(seen.mean()), float(seen.max())
        self.deviation_s = max(float(seen.std()), self._config.min_deviation_ratio * self.mean_s)

    def bound_s(self, floor_s: float | None = None) -> float:
        """Silence beyond which the sender counts as dead. `floor_s` replaces the configured floor."""
        c = self._config
        floor_s = c.floor_s if floor_s is None else floor_s
        if self.num_samples < c.min_samples:
            return c.warmup_ratio * floor_s
        adaptive_s = max(self.mean_s + self._z * self.deviation_s, c.margin * self.longest_s)
        return min(c.cap_ratio * floor_s, max(floor_s, adaptive_s))

    def phi(self, silence_s: float) -> float:
        """Suspicion after `silence_s`; 0 while there are too few samples. Finite."""
        if self.num_samples < self._config.min_samples or self.deviation_s == 0.0:
            return 0.0
        return normal_tail_phi((silence_s - self.mean_s) / self.deviation_s)


def normal_tail_phi(x: float) -> float:
    """-log10 P(Z > x) of the standard normal law, also where the probability underflows (asymptotic series)."""
    if x < 30.0:
        return max(0.0, -math.log10(0.5 * math.erfc(x / math.sqrt(2.0))))
    return (0.5 * x * x + math.log(x * math.sqrt(2.0 * math.pi))) / math.log(10.0)


def confidence(phi: float) -> float:
    """1 - 10^-phi, as the probability that the sender is dead; in [0, 1)."""
    return min(1.0 - 10.0**-phi, 1.0 - 1e-12) if phi > 0 else 0.0
