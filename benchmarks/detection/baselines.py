"""Rules of other systems, on the same streams: what they flag after each iteration, per device (groups, devices)."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Method(Protocol):
    """A detector of slow devices."""

    name: str

    def step(self, i: int, seconds: Floats, work: Floats) -> Flags:
        """Flags after iteration i. `seconds` (groups, devices, directions)."""


class RawMedian:
    """Raw compute time above `ratio` times the device's own median of the last 50 iterations, `in_a_row` times."""

    def __init__(self, ratio: float, in_a_row: int = 3, window: int = 50) -> None:
        self.name = f"raw > {ratio:g}x own median, {in_a_row} in a row"
        self._ratio, self._need, self._window = ratio, in_a_row, window
        self._past: list[Floats] = []
        self._run: npt.NDArray[np.int64] | None = None

    def step(self, i: int, seconds: Floats, work: Floats) -> Flags:
        raw = seconds.sum(-1)
        run = np.zeros(raw.shape, dtype=np.int64) if self._run is None else self._run
        if len(self._past) >= 10:
            over = raw > self._ratio * np.median(np.stack(self._past), axis=0)
            run = np.where(over, run + 1, 0)
        self._run = run
        self._past = [*self._past[1 - self._window :], raw]
        return np.asarray(run >= self._need)


class RelativeScore:
    """Score = best median of the group / own median over the last iterations; below the threshold is a straggler
    (the rule of NVIDIA's resiliency package, threshold 0.75)."""

    def __init__(self, threshold: float = 0.75, window: int = 10) -> None:
        self.name = f"relative score < {threshold:g} of the best"
        self._threshold, self._window = threshold, window
        self._past: list[Floats] = []

    def step(self, i: int, seconds: Floats, work: Floats) -> Flags:
        self._past = [*self._past[1 - self._window :], seconds.sum(-1)]
        middle = np.median(np.stack(self._past), axis=0)
        return np.asarray(middle.min(axis=1, keepdims=True) / middle < self._threshold)


class TwiceMedian:
    """Time above twice the median of the peers in the same iteration (the rule of DLRover's node check)."""

    name = "2x median of peers"

    def step(self, i: int, seconds: Floats, work: Floats) -> Flags:
        raw = seconds.sum(-1)
        return np.asarray(raw > 2.0 * np.median(raw, axis=1, keepdims=True))


class ChangePoint:
    """Bayesian online change point (Adams and MacKay, arXiv 0710.3742; unknown mean and variance) on raw times; a
    change counts if the times after it are more than `gate` above those before (Greyhound: 10 %). Series of any
    shape.
    """

    def __init__(self, gate: float = 0.1, hazard: float = 1 / 100, longest: int = 60) -> None:
        self.name = f"change point + {100 * gate:.0f} %"
        self._gate, self._hazard, self._longest = gate, hazard, longest
        self._log: Floats | None = None
        self._past: list[Floats] = []
        self._before: Floats | None = None
        self._flag: Flags | None = None
        steps = np.arange(longest + 1)
        alpha = 0.5 + steps / 2
        self._gamma = np.array([math.lgamma(a + 0.5) - math.lgamma(a) for a in alpha]) - 0.5 * np.log(2 * np.pi * alpha)
        self._alpha, self._kappa = alpha, 1.0 + steps

    def step(self, i: int, seconds: Floats, work: Floats) -> Flags:
        return self.see(seconds.sum(-1))

    def see(self, raw: Floats) -> Flags:
        """One more value of every series."""
        if self._before is None:
            self._past.append(raw)
            if len(self._past) == 20:
                self._before = np.median(np.stack(self._past), axis=0)
                self._flag = np.zeros(raw.shape, dtype=np.bool_)
                self._past = []
                shape = (*raw.shape, self._longest + 1)
                self._log = np.full(shape, -np.inf)
                self._log[..., 0] = 0.0
                self._mean, self._beta = np.ones(shape), np.full(shape, 0.5 * 0.05**2)
            return np.zeros(raw.shape, dtype=np.bool_)
        assert self._log is not None
        assert self._flag is not None
        x = (raw / self._before)[..., None]
        self._past = [*self._past[-self._longest :], raw]
        scale = self._beta * (self._kappa + 1) / (self._alpha * self._kappa)
        predictive = self._gamma - 0.5 * np.log(scale)
        predictive -= (self._alpha + 0.5) * np.log1p((x - self._mean) ** 2 / (2 * self._alpha * scale))
        joint = self._log + predictive
        top = joint.max(-1, keepdims=True)
        weight = np.exp(joint - top)
        grown = weight * (1 - self._hazard)
        new = np.empty_like(weight)
        new[..., 1:] = grown[..., :-1]
        new[..., -1] += grown[..., -1]
        new[..., 0] = (weight * self._hazard).sum(-1)
        new /= new.sum(-1, keepdims=True)
        delta = x - self._mean
        beta = self._beta + self._kappa * delta**2 / (2 * (self._kappa + 1))
        mean = self._mean + delta / (self._kappa + 1)
        self._mean = np.concatenate([np.ones_like(mean[..., :1]), mean[..., :-1]], axis=-1)
        self._beta = np.concatenate([np.full_like(beta[..., :1], 0.5 * 0.05**2), beta[..., :-1]], axis=-1)
        with np.errstate(divide="ignore"):
            self._log = np.log(new)
        return self._decide(new)

    def _decide(self, new: Floats) -> Flags:
        """A new run of 3 to 8 values is the likeliest: compare it with what was before, and start from there."""
        assert self._before is not None
        assert self._flag is not None
        length = new.argmax(-1)
        if len(self._past) >= 8:
            changed = (length >= 3) & (length <= 8)
            recent = np.median(np.stack(self._past[-3:]), axis=0)
            ratio = recent / self._before
            self._flag = np.where(changed, ratio > 1 + self._gate, self._flag)
        return np.asarray(self._flag)
