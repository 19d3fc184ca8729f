"""Names the slow link: the transfer time of a group is the shortest wait in it.

A member's wait in a transfer or collective is its idle time until the last one arrives, plus the transfer itself. The
last to arrive waits least: its wait is the transfer alone. So the minimum over the members separates a slow link from
a late peer, and edges of the same kind are compared with each other just like devices of a stage (`DeviceLevel`),
with bytes in the place of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect.config import PeerConfig
from resihp_detect.device_level import DeviceLevel
from resihp_detect.verdict import Verdict, VerdictKind

Floats = npt.NDArray[np.float64]

_KINDS = {
    VerdictKind.DEVICE_SLOW: VerdictKind.LINK_SLOW,
    VerdictKind.DEVICE_RECOVERED: VerdictKind.LINK_RECOVERED,
}


def least_waiting(wait_s: Mapping[str, float]) -> str:
    """Of the members of a blocking group, the one that waits least: the late one, if only times including waits are
    known.

    Raises ValueError if no wait is a finite number.

    >>> least_waiting({"r0": 0.3, "r1": 0.02, "r2": 0.29})
    'r1'
    """
    known = {name: wait for name, wait in wait_s.items() if np.isfinite(wait) and wait >= 0}
    if not known:
        raise ValueError(f"no wait is known: {dict(wait_s)}")
    return min(known, key=lambda name: (known[name], name))


class LinkLevel:
    """Detector of slow links. `edges`: kind (`tp`, `pp`, `dp`) -> names of the edges or groups of that kind."""

    def __init__(self, edges: Mapping[str, Sequence[str]], config: PeerConfig | None = None) -> None:
        self._level = DeviceLevel(edges, config)
        self.roster = self._level.roster

    def observe(
        self, iteration: int, waits: Floats, size_bytes: Floats, transfers: Floats | None = None
    ) -> tuple[Verdict, ...]:
        """Judge one iteration. `waits`: (kinds, edges, members) seconds summed over the iteration's transfers, NaN
        where an edge has fewer members or a report is missing; `size_bytes`: (kinds, edges), 0 if unknown; `transfers`:
        how many there were, for their latency; None: equally many everywhere. Raises ValueError for other shapes.
        """
        counts = np.ones_like(size_bytes) if transfers is None else transfers
        if waits.ndim != 3 or waits.shape[:2] != size_bytes.shape or counts.shape != size_bytes.shape:
            raise ValueError(f"waits {waits.shape}, bytes {size_bytes.shape}, counts {counts.shape} do not fit")
        known = np.isfinite(waits) & (waits >= 0)
        shortest = np.where(known, waits, np.inf).min(axis=2)
        seconds = np.where(known.sum(axis=2) >= 2, shortest, np.nan)[..., None]  # one member's wait alone says nothing
        work = np.stack([counts, size_bytes, np.zeros_like(size_bytes)], axis=-1)
        found = self._level.observe(iteration, seconds, work)
        return tuple(replace(v, kind=_KINDS.get(v.kind, v.kind)) for v in found)

    def scores(self) -> dict[str, tuple[float, float]]:
        """Edge -> (p, confidence that it is slow)."""
        return self._level.scores()

    def snapshot(self) -> dict[str, Any]:
        return self._level.snapshot()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError if the snapshot is of other edges."""
        self._level.restore(state)
