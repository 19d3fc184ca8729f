"""What a warm-up teaches about one group: healthy time, each device's offset, the noise, who was born slow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from resihp_detect.config import PeerConfig
from resihp_detect.healthy_time import HealthyTime, fit_healthy_time, usable
from resihp_detect.peers import MAD_TO_SIGMA, MEDIAN_EFFICIENCY, peer_medians, spread

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Calibration:
    """Result for one group; arrays of shape (devices,)."""

    fits: tuple[HealthyTime, ...]
    """One per direction."""
    offset: Floats
    """Median log residual of each device against its peers; 0 for a device without a report."""
    sigma: float
    """Robust deviation of residuals after peers and offsets are taken away."""
    memory: float
    """sqrt of how much autocorrelation widens sums of residuals; 1 for independent ones."""
    born_slow: Flags
    heterogeneous: bool


def calibrate(work: Floats, seconds: Floats, config: PeerConfig, moved: Flags | None = None) -> Calibration:
    """Learn from work (iterations, devices, features) and seconds (iterations, devices, directions), NaN where missing.
    `moved`: devices with a share of the work that is new to them, whose offsets are nobody's fault and no news.

    Raises ValueError if there are not enough usable rows.
    """
    valid: Flags = np.asarray(usable(work[:, :, None, :], seconds).all(-1))
    fits = tuple(
        fit_healthy_time(work[valid], seconds[valid][:, r], max_rows=config.max_rows) for r in range(seconds.shape[2])
    )
    known_work = np.where(valid[..., None], work, 0.0)
    predicted = np.sum([fit.predict(known_work) for fit in fits], axis=0)
    total = np.where(valid, seconds.sum(-1), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        residual = np.where(valid & (predicted > 0), np.log(total / predicted), np.nan)
    level, _, _ = peer_medians(residual)
    # Against the median of the whole group here: offsets are positions in the group, not in each device's own peer set.
    against = residual - level[:, None] if residual.shape[1] > 1 else residual
    offset = _column_medians(against)
    rest = against - offset
    known = rest[np.isfinite(rest)]
    sigma = float(MAD_TO_SIGMA * np.median(np.abs(known))) * np.sqrt(len(level) / max(len(level) - 1, 1))
    memory = _memory(rest, sigma)
    uncertain = 3.0 * MEDIAN_EFFICIENCY * sigma * memory**2 / np.sqrt(len(level))  # an offset is known no better
    born = born_slow(offset, config, uncertain=2.0 * uncertain)
    if moved is not None:
        born = born & ~moved
    usual = born if moved is None else born | moved
    heterogeneous = bool((np.abs(np.where(usual, 0.0, offset)) > config.heterogeneity + uncertain).any())
    return Calibration(fits, offset, sigma, memory, born, heterogeneous)


def born_slow(offset: Floats, config: PeerConfig, *, uncertain: float = 0.0) -> Flags:
    """Devices far slower than the spread of their peers explains; nobody in a group too small to have a majority.

    `uncertain`: what an offset may be by chance alone; the spread of few peers is itself too noisy to guard against
    it. If more than a share of the group would be, these are two kinds of devices, not faults.
    """
    if len(offset) < config.few_peers:
        return np.zeros(len(offset), dtype=np.bool_)
    center, _, _ = peer_medians(offset[None])
    limit = max(config.tolerance, uncertain, config.born_ratio * float(spread(offset[None])[0]))
    born = np.asarray(offset - center[0] > limit)
    return born if born.sum() <= max(1.0, config.born_share * len(offset)) else np.zeros_like(born)


def noise_factor(sigma: float, memory: float, config: PeerConfig) -> float:
    """How much k, h and clip grow for this noise."""
    return float(min(max(1.0, config.noise_ratio * sigma * memory / config.k), config.max_noise_factor))


def _column_medians(values: Floats) -> Floats:
    medians, _, count = peer_medians(values.T)
    return np.where(count > 0, medians, 0.0)


def _memory(rest: Floats, sigma: float) -> float:
    """((1 + rho) / (1 - rho))^(1/4), rho the lag-1 autocorrelation of winsorised residuals, pooled over the devices.

    The fourth root, not the square root: a warm-up of 20 iterations only hints at rho, and thresholds that take the
    hint at its word would be blind to faults of short jobs.
    """
    if sigma <= 0:
        return 1.0
    x = np.clip(rest, -3.0 * sigma, 3.0 * sigma)
    before, after = x[:-1], x[1:]
    both = np.isfinite(before) & np.isfinite(after)
    energy = float(np.mean(x[np.isfinite(x)] ** 2))
    if both.sum() < 10 or energy <= 0:
        return 1.0
    rho = float(np.clip(np.mean(before[both] * after[both]) / energy, 0.0, 0.9))
    return float(((1.0 + rho) / (1.0 - rho)) ** 0.25)
