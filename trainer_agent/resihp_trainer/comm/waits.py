"""How long this rank waited for others, by axis."""

from __future__ import annotations

from resihp_trainer.comm.port import WaitSeconds

AXIS_OF_KIND = {"tp": "tp", "edge": "pp", "bucket": "dp", "world": "dp", "copy": "dp"}
"""Axis of the parallel mesh to which the waits of a group kind are attributed."""


class WaitCounter:
    """Seconds by axis since the last `take`. Used by the training thread only."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("tp", "pp", "dp"), 0.0)

    def add(self, kind: str, seconds: float) -> None:
        self._seconds[AXIS_OF_KIND[kind]] += seconds

    def take(self) -> WaitSeconds:
        taken = WaitSeconds(**self._seconds)
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return taken
