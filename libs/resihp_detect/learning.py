"""Rows from which healthy time is learned: those of a group's first iterations, and again after a common change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect.healthy_time import NUM_FEATURES
from resihp_detect.roster import Roster
from resihp_detect.state import pack, unpack

Floats = npt.NDArray[np.float64]
Rows = list[tuple[Floats, Floats]]
"""(seconds, work) of a group's devices, one per iteration."""


class Learning:
    """Which groups learn, and what they have seen. At first all do."""

    def __init__(self, roster: Roster, num_directions: int) -> None:
        self._roster = roster
        self._row = (np.empty((roster.shape[1], num_directions)), np.empty((roster.shape[1], NUM_FEATURES)))
        self._rows: list[Rows | None] = [[] for _ in range(roster.shape[0])]
        self.began = np.zeros(roster.shape[0], dtype=np.int64)
        """Iteration of each group's first row."""

    def begin(self, g: int) -> None:
        """Anew, without what was seen so far."""
        self._rows[g] = []

    def is_open(self, g: int) -> bool:
        """Whether group g learns."""
        return self._rows[g] is not None

    def add(self, g: int, iteration: int, seconds: Floats, work: Floats, enough: int) -> Rows | None:
        """One iteration of a group that learns, NaN where nothing usable came. The rows, once there are `enough`: then
        it is over. None: go on."""
        rows = self._rows[g]
        assert rows is not None  # it learns
        if not rows:
            self.began[g] = iteration
        rows.append((seconds, work))
        if len(rows) < enough:
            return None
        self._rows[g] = None
        return rows

    def pass_on(self, o: int, new: Learning, g: int) -> None:
        """Group g of `new` goes on with what group o has seen here; devices that were not there have missed it."""
        if not self._rows[o]:
            return
        column = {name: d for d, name in enumerate(self._roster.devices[self._roster.groups[o]])}
        index = [column.get(name, -1) for name in new._roster.devices[new._roster.groups[g]]]
        width = new._roster.shape[1]
        new._rows[g] = [(_columns(s, index, width), _columns(w, index, width)) for s, w in self._rows[o] or ()]
        new.began[g] = self.began[o]

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        rows = [None if r is None else [[pack(s), pack(w)] for s, w in r] for r in self._rows]
        return {"rows": rows, "began": pack(self.began)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the shapes differ."""
        seconds, work = self._row
        self._rows = [
            None if r is None else [(unpack(s, seconds), unpack(w, work)) for s, w in r] for r in state["rows"]
        ]
        self.began = unpack(state["began"], self.began)


def _columns(old: Floats, index: Sequence[int], width: int) -> Floats:
    """Rows of devices in the order of another roster; NaN for those that were not there."""
    found = np.full((width, old.shape[1]), np.nan)
    for d, o in enumerate(index):
        if o >= 0:
            found[d] = old[o]
    return found
