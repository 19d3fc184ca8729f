"""Only step times and lengths are known: is this iteration longer than its work explains?

The paper's filter (section 5) sits between change point and validation: a change counts only if the observed time
exceeds the predicted healthy one by 25 %, else it is benign and leaves the series. Here the ratio observed /
predicted itself is the series, the change point is the clipped CUSUM of the device level, and the gate adapts:
`max(min_gate, gate_ratio * sigma)`, so that good predictions make small faults visible and bad ones do not alarm. The
prediction is passed in; `ScheduleTime` makes it from a plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resihp_detect.calibrate import noise_factor
from resihp_detect.conclude import certainty
from resihp_detect.config import PeerConfig
from resihp_detect.cusum import Cusum
from resihp_detect.peers import MAD_TO_SIGMA
from resihp_detect.verdict import Verdict, VerdictKind


@dataclass(frozen=True)
class IterationConfig:
    """Thresholds of the iteration level, log units; the CUSUM's are those of `peers`."""

    peers: PeerConfig = field(default_factory=PeerConfig)
    min_gate: float = 0.05
    gate_ratio: float = 2.0
    """Gate in deviations of healthy log ratios."""


class IterationLevel:
    """Detector on one job's iteration times.

    >>> rng = np.random.default_rng(2)
    >>> level, found = IterationLevel(), []
    >>> for i in range(1, 121):
    ...     predicted = rng.uniform(1.0, 2.0)  # the work varies by a factor of two
    ...     observed = predicted * rng.normal(1.0, 0.02) * (1.3 if i >= 80 else 1.0)
    ...     found += level.observe(i, observed, predicted)
    >>> [(str(v.kind), v.first_iteration, v.iteration, round(1 / v.p, 1)) for v in found]
    [('JobSlow', 80, 82, 1.3)]
    """

    def __init__(self, config: IterationConfig | None = None, *, job: str = "job") -> None:
        self.config = config or IterationConfig()
        self._job = job
        self._cusum = Cusum((1, 1), self.config.peers)
        self._seen = 0
        self._ratios: list[float] = []
        self._offset = 0.0
        self._sigma = 0.0
        self._factor = 1.0
        self.gate = self.config.min_gate
        """Log ratio that a change must exceed."""

    def observe(self, iteration: int, observed_s: float, predicted_s: float) -> tuple[Verdict, ...]:
        """Judge one iteration, in order. Values that are not finite and positive count as missing."""
        if not (math.isfinite(observed_s) and math.isfinite(predicted_s) and observed_s > 0 and predicted_s > 0):
            return ()
        self._seen += 1
        if self._seen <= self.config.peers.skip:
            return ()
        ratio = math.log(observed_s / predicted_s)
        if len(self._ratios) < self.config.peers.warmup:
            self._ratios.append(ratio)
            if len(self._ratios) == self.config.peers.warmup:
                self._calibrate()
            return ()
        return self._judge(iteration, ratio - self._offset)

    def _calibrate(self) -> None:
        c = self.config
        known = np.array(self._ratios)
        self._offset = float(np.median(known))
        rest = np.abs(known - self._offset)
        self._sigma = float(MAD_TO_SIGMA * np.median(rest))
        self._factor = noise_factor(self._sigma, 1.0, c.peers)
        self.gate = max(c.min_gate, c.gate_ratio * self._sigma)

    def _judge(self, iteration: int, residual: float) -> tuple[Verdict, ...]:
        c = self.config
        slow, recovered = self._cusum.update(iteration, np.array([[residual]]), np.array([self._factor]))
        if not self._cusum.slow[0, 0] and abs(residual) < self.gate:
            self._offset += c.peers.tracking * residual  # benign: follow slow drifts
        if recovered[0, 0]:
            first = int(self._cusum.recovering[0, 0])
            return (Verdict(VerdictKind.JOB_RECOVERED, iteration, first, self._job, confidence=0.99),)
        if not slow[0, 0]:
            return ()
        level, count = self._cusum.severity(0, 0)
        if level < self.gate:  # a change point that its size makes benign: it leaves the series
            self._cusum.slow[0, 0] = False
            self._cusum.rise[0, 0] = 0.0
            return ()
        error = certainty(self._sigma, 1.0, count, c.peers.warmup)
        evidence = {
            "slowdown": round(math.exp(level), 4),
            "gate": round(math.exp(self.gate), 4),
            "sigma": round(self._sigma, 4),
            "iterations_seen": count,
        }
        return (
            Verdict(
                VerdictKind.JOB_SLOW,
                iteration,
                int(self._cusum.onset[0, 0]),
                self._job,
                p=math.exp(-level),
                p_low=math.exp(-level - 1.96 * error),
                p_high=min(1.0, math.exp(-level + 1.96 * error)),
                confidence=min(1.0 - 0.5 * math.erfc(level / max(error, 1e-9) / math.sqrt(2.0)), 1.0 - 1e-9),
                evidence=evidence,
            ),
        )

    @property
    def is_slow(self) -> bool:
        return bool(self._cusum.slow[0, 0])

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        scalars = {name: getattr(self, name) for name in _SCALARS}
        return {"ratios": list(self._ratios), **scalars, "cusum": self._cusum.snapshot()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot, with this one's thresholds."""
        self._cusum.restore(state["cusum"])
        ratios: Sequence[float] = state["ratios"]
        self._ratios = list(ratios)
        for name in _SCALARS:
            setattr(self, name, state[name])


_SCALARS = ("_seen", "_offset", "_sigma", "_factor", "gate")
