"""Everybody moved: a two-sided CUSUM on the level of each group (other data, heat), which is no device's fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect.config import PeerConfig
from resihp_detect.state import pack, unpack

Floats = npt.NDArray[np.float64]


class CommonMode:
    """State per group: evidence for slower and for faster, and when it began."""

    def __init__(self, num_groups: int, config: PeerConfig) -> None:
        self._config = config
        self._sums = np.zeros((2, num_groups))
        self.onset = np.zeros(num_groups, dtype=np.int64)
        """Iteration in which the evidence last left zero."""

    def observe(
        self, iteration: int, healthy: Floats, level: Floats, normal: Floats, factor: Floats, sizes: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        """One iteration; returns the groups that moved. `healthy`: residuals of devices that are not slow; `level`:
        their median in each group, `normal` what it used to be; NaN: not known.

        The level is the median; in a group too small to outvote one device it is the one that moved least.
        """
        c = self._config
        known = np.isfinite(level) & (sizes > 1)
        few = np.isfinite(healthy).sum(axis=1) < c.few_peers
        lowest = np.where(np.isfinite(healthy), healthy, np.inf).min(axis=1)
        highest = np.where(np.isfinite(healthy), healthy, -np.inf).max(axis=1)
        was_zero = self._sums.max(axis=0) <= 0.0
        for sign, row, least in ((1.0, 0, lowest), (-1.0, 1, highest)):
            moved = np.where(known, sign * (np.where(few, least, level) - normal), 0.0)
            grown = self._sums[row] + np.minimum(moved, c.clip * factor) - c.shift_k * factor
            self._sums[row] = np.where(known, np.maximum(0.0, grown), self._sums[row])
        begins = was_zero & (self._sums.max(axis=0) > 0.0)
        self.onset = np.where(begins, iteration, self.onset)
        return np.nonzero(self._sums.max(axis=0) > c.h * factor)[0]

    def is_quiet(self, factor: Floats) -> npt.NDArray[np.bool_]:
        """Groups that give no reason to think that they move."""
        return np.asarray(self._sums.max(axis=0) < 0.25 * self._config.h * factor)

    def forget(self, g: int) -> None:
        """The group's normal is another one from now on."""
        self._sums[:, g] = 0.0

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        return {"sums": pack(self._sums), "onset": pack(self.onset)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the shapes differ."""
        self._sums, self.onset = unpack(state["sums"], self._sums), unpack(state["onset"], self.onset)
