"""What every reader returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resihp_detect import Record


@dataclass(frozen=True)
class Trace:
    """A recorded run, in the order of its iterations."""

    layout: str
    """Which reader understood it."""
    groups: dict[str, list[str]]
    """Peers: group -> devices, both in natural order."""
    num_directions: int
    records: Sequence[Record]
    num_invalid: int
    """Values that are missing or no positive number."""

    @property
    def iterations(self) -> list[int]:
        """Recorded iterations, in order."""
        return sorted({r.iteration for r in self.records})
