"""Devices whose share of a layer's work has just changed: their first iterations show how fast they are with it.

Seconds per unit of work depend on the share on real hardware: half of a small matrix product takes more than half of
its time. So after a change of layout the device is neither judged nor compared with until its residuals of some
iterations tell its new normal. On the virtual clock shares are exact, and nothing has to settle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect.state import pack, unpack

Floats = npt.NDArray[np.float64]


class Settling:
    """State of shape (groups, devices).

    >>> settling = Settling((1, 2), 3)
    >>> settling.begin(0, 1)
    >>> [settling.observe(np.array([[0.0, r]]))[0].tolist() for r in (-0.5, -0.4, -0.6)]
    [[nan, nan], [nan, nan], [nan, -0.5]]
    """

    def __init__(self, shape: tuple[int, int], length: int) -> None:
        """`length`: iterations that a device needs; 0: none ever begins."""
        self._left = np.zeros(shape, dtype=np.int64)
        self._seen = np.full((length, *shape), np.nan)
        self.moved = np.zeros(shape, dtype=np.bool_)
        """Whose share changed when the present layout began: their normal is theirs alone."""

    def begin(self, group: int, device: int) -> None:
        if len(self._seen):
            self._left[group, device] = len(self._seen)
            self.moved[group, device] = True

    @property
    def open(self) -> npt.NDArray[np.bool_]:
        """Who has not settled."""
        return np.asarray(self._left > 0)

    def observe(self, against: Floats) -> Floats:
        """Take one iteration's residuals against those who have settled; returns the new normal of each device that
        settles now, NaN of all others."""
        seen = self.open & np.isfinite(against)
        g, d = np.nonzero(seen)
        self._seen[self._left[g, d] - 1, g, d] = against[g, d]
        self._left[seen] -= 1
        found = np.full(against.shape, np.nan)
        for place in zip(*np.nonzero(seen & (self._left == 0)), strict=True):
            found[place] = np.median(self._seen[(slice(None), *place)])
        return found

    def finish(self, group: int) -> None:
        """The group has been learned anew: nobody in it has to settle."""
        self._left[group] = 0

    def snapshot(self) -> dict[str, Any]:
        return {name: pack(getattr(self, name)) for name in _STATE}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the shapes differ."""
        for name, array in {name: unpack(state[name], getattr(self, name)) for name in _STATE}.items():
            setattr(self, name, array)


_STATE = ("_left", "_seen", "moved")
