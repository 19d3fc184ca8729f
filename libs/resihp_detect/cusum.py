"""Clipped one-sided CUSUM over many devices at once, with a mirrored one for recovery (Page, Biometrika 1954).

    S = max(0, S + min(r, clip f) - k f),      slow when S > h f and the excess persists
    T = max(0, T + max(-clip f, min(ref - r, clip f))),      recovered when T > h' f
    ref = min(severity / 2, reference f)

r is the log residual against peers, f the noise factor of the device's group. "Persists": the last three iterations,
or four of the last five, were above k f. So hiccups that merely fall close together do not add up to a fault, whereas
a fault pays no delay for the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect.config import PeerConfig
from resihp_detect.state import pack, unpack

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_PERSISTENT = np.array([(m & 7) == 7 or (m & 31).bit_count() >= 4 for m in range(32)])
"""Index: the last five iterations as bits, newest lowest."""


class Cusum:
    """State of shape (groups, devices): sums, onsets, recent residuals, who is slow."""

    def __init__(self, shape: tuple[int, int], config: PeerConfig) -> None:
        self._config = config
        self.rise = np.zeros(shape)
        self.fall = np.zeros(shape)
        self.slow = np.zeros(shape, dtype=np.bool_)
        self.onset = np.zeros(shape, dtype=np.int64)
        """Iteration in which `rise` last left zero."""
        self.since = np.zeros(shape, dtype=np.int64)
        """Residuals seen since then."""
        self.recovering = np.zeros(shape, dtype=np.int64)
        """Iteration in which `fall` last left zero."""
        self._above = np.zeros(shape, dtype=np.int64)
        self._ring = np.full((config.window, *shape), np.nan, dtype=np.float32)
        self._position = np.zeros(shape, dtype=np.int64)

    def update(self, iteration: int, residual: Floats, factor: Floats) -> tuple[Flags, Flags]:
        """One iteration; NaN residuals leave a device as it is. Returns who became slow and who recovered."""
        c = self._config
        seen = np.isfinite(residual)
        r = np.where(seen, residual, 0.0)
        f = factor[:, None]
        self._remember(r, seen)
        was_zero = self.rise <= 0.0
        rise = np.maximum(0.0, self.rise + np.minimum(r, c.clip * f) - c.k * f)
        limit = 4.0 * c.h * f  # a long fault must not have to be worked off
        self.rise = np.where(seen & ~self.slow, np.minimum(rise, limit), self.rise)
        begins = seen & was_zero & (self.rise > 0.0) & ~self.slow
        self.onset = np.where(begins, iteration, self.onset)
        running = begins | (seen & ((self.rise > 0.0) | self.slow))
        self.since = np.where(begins, 1, np.where(running, self.since + 1, np.where(self.rise > 0.0, self.since, 0)))
        self._above = np.where(seen, ((self._above << 1) | (r > c.k * f)) & 31, self._above)
        became_slow = seen & ~self.slow & (self.rise > c.h * f) & _PERSISTENT[self._above]
        recovered = self._fall(iteration, r, seen, f)
        self.slow = (self.slow | became_slow) & ~recovered
        self.fall[became_slow] = 0.0
        return became_slow, recovered

    @property
    def leaning(self) -> Flags:
        """Both of a device's last two residuals were above the reference value."""
        return np.asarray((self._above & 3) == 3)

    def _fall(self, iteration: int, r: Floats, seen: Flags, f: Floats) -> Flags:
        c = self._config
        watched = self.slow & seen
        if not watched.any():
            return watched
        reference = np.zeros_like(r)
        for g, d in zip(*np.nonzero(watched), strict=True):
            severity, _ = self.severity(int(g), int(d))
            reference[g, d] = max(min(0.5 * severity, c.recovery_reference * f[g, 0]), 0.01)
        was_zero = self.fall <= 0.0
        step = np.clip(reference - r, -c.clip * f, c.clip * f)
        self.fall = np.where(watched, np.maximum(0.0, self.fall + step), self.fall)
        self.recovering = np.where(watched & was_zero & (self.fall > 0.0), iteration, self.recovering)
        recovered: Flags = watched & (self.fall > c.recovery_h * f)
        self.rise[recovered] = 0.0
        self.fall[recovered] = 0.0
        self._above[recovered] = 0
        return recovered

    def _remember(self, r: Floats, seen: Flags) -> None:
        g, d = np.nonzero(seen)
        self._ring[self._position[g, d], g, d] = r[g, d]
        self._position[g, d] = (self._position[g, d] + 1) % self._config.window

    def severity(self, group: int, device: int) -> tuple[float, int]:
        """Median residual since the onset (at most the window) and the number of residuals it rests on."""
        size = self._config.window
        count = int(min(max(self.since[group, device], 1), size))
        newest = self._position[group, device]
        recent = self._ring[(newest - 1 - np.arange(count)) % size, group, device]
        known = recent[np.isfinite(recent)]
        return (float(np.median(known)), len(known)) if len(known) else (0.0, 0)

    def declare(self, group: int, device: int, iteration: int, level: float) -> None:
        """Count a device as slow from `iteration` on (it was born so), with a residual of `level`."""
        self.slow[group, device] = True
        self.onset[group, device] = iteration
        self.since[group, device] = 1
        self._ring[:, group, device] = level

    def forget_evidence(self, group: int) -> None:
        """Half-collected evidence of a group is void (its healthy time changed); who is slow stays so."""
        idle = ~self.slow[group]
        self.rise[group, idle] = 0.0
        self.since[group, idle] = 0
        self._above[group] = 0
        self.fall[group] = 0.0

    def snapshot(self) -> dict[str, Any]:
        return {name: pack(getattr(self, name)) for name in _STATE}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the shapes differ."""
        found = {name: unpack(state[name], getattr(self, name)) for name in _STATE}
        for name, array in found.items():
            setattr(self, name, array)


_STATE = ("rise", "fall", "slow", "onset", "since", "recovering", "_above", "_ring", "_position")
