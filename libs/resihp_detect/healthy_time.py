"""How long should this work take on a healthy device? (paper section 5: `T = alpha N + beta sum l^2`)

Bayesian linear regression on the features {micro-batches, tokens, sum of squared lengths}. Rows are made relative,
`x / y -> 1`, so that long and short work count alike and the noise is a ratio; features and seconds are put on a scale
that is fixed when learning begins (medians), never on a running one, which would erase the constant column. Work
packed to a fixed budget makes the first two features collinear; the prior keeps the fit finite, and predictions do
not care.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NUM_FEATURES = 3
"""Micro-batches, tokens, sum of squared lengths."""
_INITIAL_SIGMA = 0.03
_OUTLIER = 4.0
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class HealthyTime:
    """A frozen fit: seconds as a linear function of work, and how far healthy times scatter around it."""

    weights: tuple[float, ...]
    """Seconds per unit of each feature."""
    sigma: float
    """Robust deviation of log(observed / predicted): the predictive deviation, calibrated."""

    def predict(self, work: Floats) -> Floats:
        """Seconds for work of shape (..., features). Not positive where the fit has no sense: callers treat it as
        missing.
        """
        return np.asarray(work @ np.asarray(self.weights))

    def interval(self, work: Floats, *, z: float = 1.96) -> tuple[Floats, Floats]:
        """Bounds between which healthy seconds lie with the probability of +-z normal deviations."""
        expected = self.predict(work)
        return expected * math.exp(-z * self.sigma), expected * math.exp(z * self.sigma)

    def scaled(self, factor: float) -> HealthyTime:
        """The same stage with `factor` times the work per token (a changed layer range or tensor share)."""
        return HealthyTime(tuple(w * factor for w in self.weights), self.sigma)

    def as_dict(self) -> dict[str, Any]:
        return {"weights": list(self.weights), "sigma": self.sigma}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> HealthyTime:
        return cls(tuple(float(w) for w in state["weights"]), float(state["sigma"]))


def usable(work: Floats, seconds: Floats) -> npt.NDArray[np.bool_]:
    """Rows that mean anything: finite, positive seconds; finite work, not negative, some of it positive."""
    ok: npt.NDArray[np.bool_] = np.isfinite(seconds) & (seconds > 0) & np.isfinite(work).all(-1)
    return ok & (work >= 0).all(-1) & (work > 0).any(-1)


def fit_healthy_time(work: Floats, seconds: Floats, *, max_rows: int = 512) -> HealthyTime:
    """Learn from rows in time order, work (n, features) and seconds (n,); unusable rows are left out.

    Robust by two passes: rows farther than four robust deviations from the first fit do not enter the second one.
    Raises ValueError if fewer than 3 usable rows are left.

    >>> rng = np.random.default_rng(1)
    >>> work = np.stack([np.full(200, 8.0), np.full(200, 65536.0), rng.uniform(1e8, 1e9, 200)], axis=1)
    >>> seconds = (0.1 + 2e-10 * work[:, 2]) * np.exp(rng.normal(0, 0.02, 200))
    >>> seconds[::20] *= 5  # hiccups
    >>> fit = fit_healthy_time(work, seconds)
    >>> predicted = fit.predict(np.array([8.0, 65536.0, 5e8]))
    >>> bool(abs(predicted / 0.2 - 1) < 0.01), 0.015 < fit.sigma < 0.025
    (True, True)
    """
    ok = usable(work, seconds)
    work, seconds = work[ok], seconds[ok]
    if len(seconds) < 3:
        raise ValueError(f"healthy time needs at least 3 usable rows, there are {len(seconds)}")
    chosen = np.unique(np.linspace(0, len(seconds) - 1, min(max_rows, len(seconds))).astype(int))
    work, seconds = work[chosen], seconds[chosen]
    scale = np.median(work, axis=0)
    scale = np.where(scale > 0, scale, np.maximum(work.max(axis=0), 1.0))
    unit_s = float(np.median(seconds))
    x, y = work / scale, seconds / unit_s
    weights = _learn(x, y, _INITIAL_SIGMA)
    residual = _residual(x, y, weights)
    sigma = _deviation(residual)
    kept = np.abs(residual - np.median(residual)) <= _OUTLIER * max(sigma, 1e-3)
    if kept.sum() >= 3:
        x, y = x[kept], y[kept]
        weights = _learn(x, y, max(sigma, 1e-3))
        residual = _residual(x, y, weights)
        sigma = _deviation(residual)
    weights = weights * math.exp(
        float(np.median(residual))
    )  # relative rows estimate 1 / mean(1 / y): centre the median
    return HealthyTime(tuple(float(w) for w in weights * unit_s / scale), sigma)


def prepare() -> None:
    """Import what learning needs, which takes a second or two: a process that has other things to do first calls it in
    a thread."""
    import river.linear_model  # noqa: F401


def _learn(x: Floats, y: Floats, sigma: float) -> Floats:
    from river.linear_model import BayesianLinearRegression

    model = BayesianLinearRegression(alpha=1.0, beta=1.0 / sigma**2)
    names = range(x.shape[1])
    for row, seconds in zip(x, y, strict=True):
        model.learn_one({j: float(row[j]) / float(seconds) for j in names}, 1.0)  # type: ignore[no-untyped-call]
    # the posterior mean of weight j is the prediction for the j-th unit vector
    return np.array([float(model.predict_one({j: 1.0})) for j in names])  # type: ignore[no-untyped-call]


def _residual(x: Floats, y: Floats, weights: Floats) -> Floats:
    return np.asarray(np.log(y / np.maximum(x @ weights, 1e-6)))


def _deviation(residual: Floats) -> float:
    return float(_MAD_TO_SIGMA * np.median(np.abs(residual - np.median(residual))))
