"""What is normal: healthy time per group, and how far each device is from it when nothing is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect.healthy_time import NUM_FEATURES, HealthyTime
from resihp_detect.state import pack, unpack

Floats = npt.NDArray[np.float64]


class Normal:
    """State of `shape` (groups, devices), in logarithmic units. Rows of groups that were not learned yet are zero."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.fits: list[tuple[HealthyTime, ...] | None] = [None] * shape[0]
        """Frozen healthy time of each group, one per direction."""
        self.weights = np.zeros((shape[0], NUM_FEATURES))
        """Seconds per feature: of all directions together."""
        self.offset = np.zeros(shape)
        """Of each device, against its group."""
        self.anchor = np.zeros(shape)
        """Where the offset began; it follows no farther than the tolerance."""
        self.level = np.zeros(shape[0])
        """Of each group, against its healthy time."""
        self.sigma = np.zeros(shape[0])
        """Robust deviation of healthy residuals in the warm-up."""
        self.memory = np.ones(shape[0])
        """Factor for their autocorrelation."""
        self.spread = np.zeros(shape[0])
        """The deviation as it is seen at present."""

    @property
    def is_learned(self) -> npt.NDArray[np.bool_]:
        """Of each group."""
        return np.array([fit is not None for fit in self.fits])

    def residual(self, seconds: Floats, work: Floats, valid: npt.NDArray[np.bool_]) -> Floats:
        """log(observed / healthy), NaN where not valid or not known."""
        predicted = np.einsum("gdf,gf->gd", np.where(valid[..., None], work, 0.0), self.weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(valid & (predicted > 0), np.log(seconds.sum(-1) / predicted), np.nan)

    def learned(self, g: int, fits: tuple[HealthyTime, ...], sigma: float, memory: float) -> None:
        """Group g has a new healthy time; its level is zero by definition."""
        self.fits[g] = fits
        self.weights[g] = np.sum([fit.weights for fit in fits], axis=0)
        self.sigma[g], self.memory[g], self.spread[g] = sigma, memory, sigma
        self.level[g] = 0.0

    def pass_on(self, o: int, new: Normal, g: int, factor: float) -> None:
        """Group g of `new` is that of group o here, with `factor` times the work."""
        fits = self.fits[o]
        new.fits[g] = None if fits is None else tuple(fit.scaled(factor) for fit in fits)
        new.weights[g] = self.weights[o] * factor
        for name in ("sigma", "memory", "spread", "level"):
            getattr(new, name)[g] = getattr(self, name)[o]

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        fits = [None if f is None else [fit.as_dict() for fit in f] for f in self.fits]
        return {"fits": fits, **{name: pack(getattr(self, name)) for name in _STATE}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the shapes differ."""
        arrays = {name: unpack(state[name], getattr(self, name)) for name in _STATE}
        self.fits = [None if f is None else tuple(HealthyTime.from_dict(x) for x in f) for f in state["fits"]]
        for name, array in arrays.items():
            setattr(self, name, array)


_STATE = ("weights", "offset", "anchor", "level", "sigma", "memory", "spread")
