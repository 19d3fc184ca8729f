"""Devices that stand by compute nothing, so their health shows in a probe: a fixed matrix product, timed.

Every device is probed when an epoch begins; the shortest time of a healthy device is its own normal. While it stands by
it is probed in every iteration, and the ratio to its normal is judged like a residual of the device level.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resihp_detect.calibrate import noise_factor
from resihp_detect.conclude import certainty, confidence_of
from resihp_detect.config import PeerConfig
from resihp_detect.cusum import Cusum
from resihp_detect.peers import MAD_TO_SIGMA
from resihp_detect.verdict import Verdict, VerdictKind

GROUP = "standby"
_REMEMBERED = 32


@dataclass
class _Watched:
    cusum: Cusum
    residuals: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class ProbeLevel:
    """Detector on probes, device by device.

    >>> level = ProbeLevel()
    >>> level.learn("r5", 2.0e-3)
    >>> found = [level.observe(i, "r5", 4.0e-3 if i < 40 else 2.0e-3) for i in range(30, 60)]
    >>> [(str(v.kind), v.iteration, round(v.p, 2)) for some in found for v in some]
    [('DeviceSlow', 32, 0.5), ('DeviceRecovered', 42, 1.0)]
    """

    def __init__(self, config: PeerConfig | None = None) -> None:
        self.config = config or PeerConfig()
        self._normal_s: dict[str, float] = {}
        self._watched: dict[str, _Watched] = {}

    def learn(self, device: str, seconds: float, *, p: float = 1.0) -> None:
        """A probe of a device that runs at `p` of its healthy speed. Values that are not positive are left out."""
        if math.isfinite(seconds) and seconds > 0:
            self._normal_s[device] = min(self._normal_s.get(device, math.inf), seconds * p)

    def stand_by(self, device: str, iteration: int, *, p: float = 1.0) -> None:
        """From now on its probes are judged; `p`: what is known of it."""
        watched = self._watched[device] = _Watched(Cusum((1, 1), self.config))
        if p < 1.0:
            watched.cusum.declare(0, 0, iteration, -math.log(p))

    def leave(self, device: str) -> None:
        """It works again, or is gone."""
        self._watched.pop(device, None)

    def knows(self, device: str) -> bool:
        """Whether it has a normal to compare with."""
        return device in self._normal_s

    def observe(self, iteration: int, device: str, seconds: float) -> tuple[Verdict, ...]:
        """Judge one probe. Without a normal of the device, or a usable value, nothing is said."""
        normal_s = self._normal_s.get(device)
        if normal_s is None or not (math.isfinite(seconds) and seconds > 0):
            return ()
        if device not in self._watched:
            self.stand_by(device, iteration)
        watched = self._watched[device]
        residual = math.log(seconds / normal_s)
        watched.residuals.append(residual)
        factor, sigma = self._noise(watched)
        slow, recovered = watched.cusum.update(iteration, np.array([[residual]]), np.array([factor]))
        if recovered[0, 0]:
            first = int(watched.cusum.recovering[0, 0])
            evidence: dict[str, Any] = {"probe_s": seconds, "normal_s": normal_s}
            kind = VerdictKind.DEVICE_RECOVERED
            return (Verdict(kind, iteration, first, GROUP, device, confidence=0.99, evidence=evidence),)
        return (self._slow(iteration, device, watched, sigma, normal_s),) if slow[0, 0] else ()

    def score(self, device: str) -> tuple[float, float] | None:
        """(p, confidence that it is slow) of a device that stands by; None of another."""
        watched = self._watched.get(device)
        if watched is None:
            return None
        if not watched.cusum.slow[0, 0]:
            return 1.0, 0.0
        level, count = watched.cusum.severity(0, 0)
        return math.exp(-max(level, 0.0)), confidence_of(level, certainty(self._noise(watched)[1], 1.0, count, 20))

    def _slow(self, iteration: int, device: str, watched: _Watched, sigma: float, normal_s: float) -> Verdict:
        level, count = watched.cusum.severity(0, 0)
        error = certainty(sigma, 1.0, count, self.config.warmup)
        return Verdict(
            VerdictKind.DEVICE_SLOW,
            iteration,
            int(watched.cusum.onset[0, 0]),
            GROUP,
            device,
            math.exp(-level),
            math.exp(-level - 1.96 * error),
            min(1.0, math.exp(-level + 1.96 * error)),
            confidence_of(level, error),
            {"slowdown": round(math.exp(level), 4), "iterations_seen": count, "normal_s": normal_s},
        )

    def _noise(self, watched: _Watched) -> tuple[float, float]:
        """Factor and deviation of successive differences: a change of level is no noise."""
        steps = np.abs(np.diff(np.array(watched.residuals)))
        sigma = float(MAD_TO_SIGMA * np.median(steps) / math.sqrt(2.0)) if len(steps) >= 5 else 0.02
        return noise_factor(sigma, 1.0, self.config), sigma

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        watched = {d: {"cusum": w.cusum.snapshot(), "residuals": list(w.residuals)} for d, w in self._watched.items()}
        return {"normal_s": dict(self._normal_s), "watched": watched}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self._normal_s = dict(state["normal_s"])
        self._watched = {}
        for device, known in state["watched"].items():
            watched = _Watched(Cusum((1, 1), self.config), deque(known["residuals"], maxlen=_REMEMBERED))
            watched.cusum.restore(known["cusum"])
            self._watched[device] = watched
