"""How long this rank waited for others, by axis."""

from __future__ import annotations

from resihp_trainer.comm.port import WaitSeconds

AXIS_OF_KIND = {"tp": "tp", "edge": "pp", "bucket": "dp", "world": "dp", "copy": "dp"}
"""Axis of the parallel mesh to which the waits of a group kind are attributed."""
_NOTHING = WaitSeconds()


class WaitCounter:
    """Seconds by axis since the last `take`. Used by the training thread only."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, kind: str, seconds: float) -> None:
        axis = AXIS_OF_KIND[kind]
        self._seconds[axis] = self._seconds.get(axis, 0.0) + seconds

    def take(self) -> WaitSeconds:
        if not self._seconds:
            return _NOTHING
        taken = WaitSeconds(**self._seconds)
        self._seconds.clear()
        return taken
