"""Only step times, lengths and the plan are known: which stage's slowness explains the times, iteration by iteration?

A slow device lengthens only iterations in whose critical path it lies: a few percent at 1.25x, nothing when another
replica has more work. So a threshold on the ratio observed / predicted (`IterationLevel`) is blind to it. But the plan
says how each iteration would be lengthened if this or that stage were slow (`ScheduleTime.effects`), and the pattern
over iterations is a fingerprint of the stage. Each hypothesis gets a CUSUM of its log likelihood ratio (Page 1954):

    S = max(0, S + (r e - e^2 / 2) / sigma^2),      slow when S > h

with r the log ratio observed / predicted, clipped, and e the effect of the hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect.peers import MAD_TO_SIGMA
from resihp_detect.verdict import Verdict, VerdictKind

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MatchedConfig:
    """Thresholds. Log units, natural logarithms of likelihood ratios."""

    skip: int = 2
    warmup: int = 20
    """Iterations from which the offset and the noise are learned."""
    h: float = 14.0
    """Healthy noise exceeds it about once in e^14 iterations and hypotheses."""
    clip: float = 4.0
    """Deviations that one iteration can contribute: a hiccup never alarms alone."""
    min_sigma: float = 0.01
    sigma_margin: float = 1.2
    """Twenty iterations know their deviation no better than this."""
    ambiguity: float = 3.0
    """Stages whose evidence is within this of the best are suspects, too."""
    tracking: float = 1.0 / 64.0
    """Rate at which slow drifts of the level are followed while nobody is suspected."""


class MatchedLevel:
    """Detector on one job's iteration times. `places`: names of the hypotheses, in the order of the effects.

    >>> rng = np.random.default_rng(3)
    >>> level, found = MatchedLevel(["R0.S0", "R1.S0"]), []
    >>> for i in range(1, 121):
    ...     effects = [0.07, 0.0] if rng.random() < 0.5 else [0.0, 0.07]  # either replica may have more work
    ...     slow = effects[1] if i >= 80 else 0.0
    ...     found += level.observe(i, math.exp(rng.normal(slow, 0.02)), 1.0, effects)
    >>> [(str(v.kind), v.device, v.iteration < 95) for v in found]
    [('JobSlow', 'R1.S0', True)]
    """

    def __init__(self, places: Sequence[str], config: MatchedConfig | None = None, *, job: str = "job") -> None:
        self.config = config or MatchedConfig()
        self.places = tuple(places)
        self._job = job
        self._seen = 0
        self._ratios: list[float] = []
        self._offset = 0.0
        self._sigma = 0.0
        self._sums: Floats = np.zeros(len(self.places))
        self._onset = np.zeros(len(self.places), dtype=np.int64)
        self._products: Floats = np.zeros((2, len(self.places)))
        """Since the onset: sums of r e and e^2, for the severity."""
        self._slow: int | None = None
        self._fall = 0.0

    def observe(
        self, iteration: int, observed_s: float, predicted_s: float, effects: Sequence[float] | Floats
    ) -> tuple[Verdict, ...]:
        """Judge one iteration, in order. `effects`: log factor by which each hypothesis would lengthen it. Values that
        are not finite and positive count as missing. Raises ValueError for another number of effects."""
        e = np.asarray(effects, dtype=np.float64)
        if e.shape != (len(self.places),):
            raise ValueError(f"{len(self.places)} effects expected, got {e.shape}")
        if not (math.isfinite(observed_s) and math.isfinite(predicted_s) and observed_s > 0 and predicted_s > 0):
            return ()
        self._seen += 1
        if self._seen <= self.config.skip:
            return ()
        ratio = math.log(observed_s / predicted_s)
        if len(self._ratios) < self.config.warmup:
            self._ratios.append(ratio)
            self._calibrate()
            return ()
        limit = self.config.clip * self._sigma
        return self._judge(iteration, float(np.clip(ratio - self._offset, -limit, limit)), e)

    def _calibrate(self) -> None:
        """Deviation of values winsorised at three robust deviations: twice as efficient as the robust one alone."""
        known = np.array(self._ratios)
        self._offset = float(np.median(known))
        rest = known - self._offset
        robust = max(float(MAD_TO_SIGMA * np.median(np.abs(rest))), self.config.min_sigma)
        winsorised = float(np.sqrt(np.mean(np.clip(rest, -3.0 * robust, 3.0 * robust) ** 2)))
        self._sigma = max(self.config.sigma_margin * winsorised, self.config.min_sigma)

    def _judge(self, iteration: int, r: float, e: Floats) -> tuple[Verdict, ...]:
        c = self.config
        gain = (r * e - 0.5 * e * e) / self._sigma**2
        if self._slow is not None:
            self._fall = max(0.0, self._fall - float(gain[self._slow]))
            if self._fall <= c.h:
                return ()
            place, self._slow, self._fall = self.places[self._slow], None, 0.0
            self._sums[:] = 0.0
            return (Verdict(VerdictKind.JOB_RECOVERED, iteration, iteration, self._job, place, confidence=0.99),)
        idle = self._sums <= 0.0
        self._sums = np.maximum(0.0, self._sums + gain)
        self._onset = np.where(idle & (self._sums > 0.0), iteration, self._onset)
        self._products = np.where(self._sums > 0.0, self._products + np.stack([r * e, e * e]), 0.0)
        best = int(self._sums.argmax())
        if self._sums[best] <= c.h:
            if self._sums[best] < 0.25 * c.h:
                self._offset += c.tracking * r
                self._sigma = math.sqrt((1 - c.tracking) * self._sigma**2 + c.tracking * max(r * r, c.min_sigma**2))
            return ()
        self._slow = best
        return (self._verdict(iteration, best),)

    def _verdict(self, iteration: int, best: int) -> Verdict:
        suspects = [
            self.places[i] for i in np.argsort(-self._sums) if self._sums[i] > self._sums[best] - self.config.ambiguity
        ]
        evidence: dict[str, Any] = {
            "log_likelihood": round(float(self._sums[best]), 2),
            "suspects": suspects,
            "sigma": round(self._sigma, 4),
            "size": round(float(self._products[0, best] / self._products[1, best]), 3),
        }
        confidence = 1.0 - math.exp(-float(self._sums[best]))
        first = int(self._onset[best])
        device = self.places[best]
        return Verdict(
            VerdictKind.JOB_SLOW, iteration, first, self._job, device, confidence=confidence, evidence=evidence
        )

    @property
    def is_slow(self) -> bool:
        return self._slow is not None
