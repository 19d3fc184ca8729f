"""What is known about a device beyond the epoch in which it was learned."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class DeviceMemory:
    """What outlives an epoch of one device."""

    offset: float = 0.0
    anchor: float = 0.0
    slow_since: int | None = None
    """Iteration; None if it is not slow."""
    level: float = 0.0
    """Log slowdown."""

    @property
    def p(self) -> float:
        """Throughput relative to healthy."""
        return math.exp(-max(self.level, 0.0)) if self.slow_since is not None else 1.0

    def with_speed(self, slow_since: int | None, p: float) -> DeviceMemory:
        """The same device at another speed."""
        return replace(self, slow_since=slow_since, level=-math.log(p) if slow_since is not None else 0.0)

    def as_list(self) -> list[Any]:
        """Plain values, in the order of the fields."""
        return [self.offset, self.anchor, self.slow_since, self.level]
