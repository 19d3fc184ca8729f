"""What a bus counts, and how it avoids flooding the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field


@dataclass
class BusStats:
    """Counters of one bus since its start. Only the bus writes them; `resihp_chassis.metrics` exports them."""

    published: int = 0
    """Messages known to be stored (or, for beats and soon-publishes, handed to the connection)."""
    dropped: int = 0
    """Messages of `publish_soon` and live messages of slow listeners that were given up."""
    delivered: int = 0
    """Calls of handlers, retries included."""
    retried: int = 0
    rejected: int = 0
    """Dead letters: rejected by their handler, malformed, or out of tries."""
    malformed: int = 0
    """Messages that broke the wire contract; they never reach a handler."""
    handler_errors: int = 0
    disconnects: int = 0
    errors: int = 0
    """Asynchronous errors of the connection, permission violations among them."""

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass
class RateLimit:
    """Says yes at most once per `period_s` and key, and then how many it swallowed in between.

    The connection reports some errors once per dropped message: logging each would be a second outage.
    """

    period_s: float = 5.0
    now: Callable[[], float] = time.monotonic
    _last: dict[str, float] = field(default_factory=dict)
    _swallowed: dict[str, int] = field(default_factory=dict)

    def allow(self, key: str) -> int | None:
        """None: stay silent. Otherwise the number of silent occurrences since the last yes."""
        now = self.now()
        if key in self._last and now - self._last[key] < self.period_s:
            self._swallowed[key] = self._swallowed.get(key, 0) + 1
            return None
        self._last[key] = now
        return self._swallowed.pop(key, 0)
