"""How long a slowdown will go on, given how long it has lasted: a mixture of two exponentials.

Most episodes are short and a few are very long, so the longer one lasts, the longer it is expected to go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Durations:
    """Mixture of a common short and a rare long kind of episode. Seconds."""

    mean_s: float
    long_mean_s: float = 12_000.0
    """Whose 95th percentile is 10 hours, the longest that was observed (Greyhound)."""
    long_share: float = 0.05

    def remaining_s(self, age_s: float) -> float:
        """Expected rest of an episode that has lasted `age_s`.

        >>> [round(COMPUTE.remaining_s(60.0 * minutes)) for minutes in (0, 10, 30, 120)]
        [1170, 1966, 6031, 11998]
        """
        # Both weights are scaled by exp(age/long), so that neither underflows for old episodes.
        short = (1.0 - self.long_share) * math.exp(-age_s / self.mean_s + age_s / self.long_mean_s)
        return (short * self.mean_s + self.long_share * self.long_mean_s) / (short + self.long_share)


COMPUTE = Durations(600.0)
"""Contention, throttling: about 10 minutes on average."""
COMMUNICATION = Durations(1440.0)
"""Congestion: about 24 minutes."""
