"""Records of single devices, in any order -> whole iterations, in order.

Peers can be compared only when their reports of the same iteration are together. An iteration is closed when every
device has reported, or when `grace` later ones have a quorum of reports: a missing report delays judgement by that
much and no more. Repeated and late records are counted and dropped, so that delivering a stream twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect.healthy_time import NUM_FEATURES
from resihp_detect.roster import Roster

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Record:
    """What one device did in one iteration."""

    iteration: int
    device: str
    seconds: tuple[float, ...]
    """Compute only, per direction. NaN: not known."""
    work: tuple[float, float, float] = (1.0, 0.0, 0.0)
    """Micro-batches, tokens, sum of squared lengths; zero where unknown for the whole group."""


@dataclass(frozen=True)
class Frame:
    """One closed iteration: what `DeviceLevel.observe` takes."""

    iteration: int
    seconds: Floats
    work: Floats
    num_missing: int


class Assembly:
    """Collects records until an iteration can be judged. Holds at most `max_pending` iterations."""

    def __init__(self, roster: Roster, *, num_directions: int = 1, grace: int = 2, max_pending: int = 64) -> None:
        if grace < 1 or max_pending <= grace:
            raise ValueError(f"assembly needs 1 <= grace < max_pending, not {grace}, {max_pending}")
        self._roster, self._directions, self._grace, self._max_pending = roster, num_directions, grace, max_pending
        self._pending: dict[int, dict[str, Record]] = {}
        self._closed: int | None = None
        self.num_repeated = 0
        self.num_late = 0
        self.num_unknown = 0
        """Of devices that are not on the roster, or with another number of directions."""

    def add(self, record: Record) -> tuple[Frame, ...]:
        """Take one record; returns the iterations that it completes, in order."""
        if record.device not in self._roster.places or len(record.seconds) != self._directions:
            self.num_unknown += 1
            return ()
        if self._closed is not None and record.iteration <= self._closed:
            self.num_late += 1
            return ()
        known = self._pending.setdefault(record.iteration, {})
        if record.device in known:
            self.num_repeated += 1
            return ()
        known[record.device] = record
        return self._close_ready()

    def flush(self) -> tuple[Frame, ...]:
        """The stream is over: close everything."""
        return tuple(self._close(i) for i in sorted(self._pending))

    def _close_ready(self) -> tuple[Frame, ...]:
        frames = []
        num_devices = len(self._roster.places)
        for i in sorted(self._pending):
            later = sum(j > i and 2 * len(r) >= num_devices for j, r in self._pending.items())
            complete = len(self._pending[i]) == num_devices
            if not (complete or later >= self._grace or len(self._pending) > self._max_pending):
                break
            frames.append(self._close(i))
        return tuple(frames)

    def _close(self, iteration: int) -> Frame:
        shape = self._roster.shape
        seconds = np.full((*shape, self._directions), np.nan)
        work = np.full((*shape, NUM_FEATURES), np.nan)
        known = self._pending.pop(iteration)
        for name, record in known.items():
            g, d = self._roster.places[name]
            seconds[g, d], work[g, d] = record.seconds, record.work
        self._closed = iteration
        return Frame(iteration, seconds, work, len(self._roster.places) - len(known))

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        rows = [
            [r.iteration, r.device, list(r.seconds), list(r.work)] for i in self._pending.values() for r in i.values()
        ]
        return {"closed": self._closed, "pending": rows, "counts": [self.num_repeated, self.num_late, self.num_unknown]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot of the same roster."""
        self._closed = state["closed"]
        self.num_repeated, self.num_late, self.num_unknown = state["counts"]
        self._pending = {}
        rows: Sequence[Any] = state["pending"]
        for iteration, device, seconds, (count, tokens, squares) in rows:
            record = Record(iteration, device, tuple(seconds), (count, tokens, squares))
            self._pending.setdefault(iteration, {})[device] = record
