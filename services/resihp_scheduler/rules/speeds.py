"""From noisy scores to the speed that is planned with: averaged until it is known, then held until it clearly differs.

A speed that is 3 % off costs 3 % of the throughput, so nothing is moved for less (evidence: planning, section 5).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from resihp_messages.thresholds import THRESHOLDS

MAX_ERROR = 0.02
"""Relative standard error at which a speed counts as known."""
PATIENCE = 6
"""Scores after which it is taken as it is: noise that does not average out is no reason to do nothing."""
HYSTERESIS = THRESHOLDS["hysteresis"].default
"""A known speed that differs by less from the planned one changes nothing."""
SETTLED_S = THRESHOLDS["settled_s"].default
"""On a real clock a slowness must have lasted this long: shorter ones (a crowded host) are over before a change has
paid off. Virtual devices are slow only if somebody says so."""
_Z95 = 1.96


@dataclass(frozen=True)
class Estimate:
    """A speed (1 is healthy) and its relative standard error."""

    p: float
    error: float
    num_scores: int

    @property
    def is_known(self) -> bool:
        return self.error <= MAX_ERROR or self.num_scores >= PATIENCE


def of_interval(p: float, low: float | None, high: float | None, num_scores: int = 1) -> Estimate:
    """From a verdict with its 95 % interval; without one nothing is known about the error."""
    if low is None or high is None or p <= 0.0:
        return Estimate(p, math.inf, num_scores)
    return Estimate(p, (high - low) / (2 * _Z95 * p), num_scores)


@dataclass
class Track:
    """Scores of one device since its speed last changed.

    >>> import random
    >>> rng, track = random.Random(0), Track()
    >>> for _ in range(8):
    ...     track.add(0.5 * math.exp(rng.gauss(0.0, 0.03)))
    >>> track.estimate().is_known, round(track.estimate().p, 2)
    (True, 0.5)
    """

    scores: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    interval: tuple[float, float] | None = None
    """Of the newest score, if it says."""

    def add(self, p: float, interval: tuple[float, float] | None = None) -> None:
        self.scores.append(p)
        self.interval = interval

    def estimate(self) -> Estimate | None:
        """None before the first score. With an interval the newest score is already an average."""
        if not self.scores:
            return None
        count = len(self.scores)
        if self.interval is not None:
            return of_interval(self.scores[-1], *self.interval, count)
        if count < 3:
            return Estimate(self.scores[-1], math.inf, count)
        logs = [math.log(p) for p in self.scores if p > 0]
        return Estimate(math.exp(statistics.fmean(logs)), statistics.stdev(logs) / math.sqrt(len(logs)), count)

    def clear(self) -> None:
        self.scores.clear()
        self.interval = None


def differs(planned: float, measured: float, threshold: float = HYSTERESIS) -> bool:
    """Whether a measured speed is far enough from the planned one to think again."""
    return abs(measured / planned - 1.0) > threshold if planned > 0 else measured > 0
