"""Order statistics over peers, vectorised over groups. Arrays have shape (groups, devices); missing values are NaN."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MAD_TO_SIGMA = 1.4826
MEDIAN_EFFICIENCY = 1.2533
"""Deviation of a median over that of a mean, normal law."""
MEDIAN_JUMP = 0.9539
"""Median absolute difference of two independent values over their deviation, normal law."""


def peer_medians(values: Floats) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Median of each group, median of each device's *peers* (the device itself left out), and values per group.

    Leaving the device out keeps comparisons in small groups honest: of two devices each is compared with the other.
    The peers' median of a device alone, and of a missing value, is NaN.

    >>> group, peers, count = peer_medians(np.array([[1.0, 2.0, 9.0, np.nan]]))
    >>> group.tolist(), peers[0, :3].tolist(), count.tolist()
    ([2.0], [5.5, 5.0, 1.5], [3])
    """
    ordered = np.sort(values, axis=1)  # NaN go to the end
    count = np.isfinite(values).sum(axis=1)
    rows = np.arange(len(values))
    last = values.shape[1] - 1

    def at(index: npt.NDArray[np.int64]) -> Floats:
        return ordered[rows, np.clip(index, 0, last)][:, None]

    group = 0.5 * (at((count - 1) // 2) + at(count // 2))
    others = count - 1
    low, high = (others - 1) // 2, others // 2
    # Without the device itself, the values below it keep their place and those above move down by one.
    low_value = np.where(values > at(low), at(low), at(low + 1))
    high_value = np.where(values > at(high), at(high), at(high + 1))
    peers = 0.5 * (low_value + high_value)
    peers = np.where((others < 1)[:, None] | ~np.isfinite(values), np.nan, peers)
    return np.where(count > 0, group[:, 0], np.nan), peers, count


def spread(values: Floats) -> Floats:
    """Robust standard deviation of each group (1.4826 MAD); NaN for a group without values."""
    group, _, _ = peer_medians(values)
    deviation, _, _ = peer_medians(np.abs(values - group[:, None]))
    return MAD_TO_SIGMA * deviation
