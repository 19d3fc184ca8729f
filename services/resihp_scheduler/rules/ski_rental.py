"""To change or to wait: the ski-rental problem with a forecast (Karlin et al. 1994; used for fail-slow by Greyhound).

Going on slowly is rent, a change of plan is the price of buying. Whoever buys when the rent paid equals the price never
pays more than twice what the best choice in hindsight would have cost; a forecast of the rest can only bring the
moment forward. Both are one rule: plan for the horizon `max(expected rest, age)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from resihp_messages.thresholds import THRESHOLDS

MIN_GAIN = THRESHOLDS["min_gain"].default
"""A plan that is predicted to be faster by less than this is not worth a change: predictions are no better."""


@dataclass(frozen=True)
class Offer:
    """A plan that could be taken. Rates are tokens per second."""

    stay: float
    """With the plan in force."""
    best: float
    """With the offered one."""
    change_s: float
    """Without training, for the change."""

    @property
    def gain(self) -> float:
        """Relative: 0.1 is a tenth faster."""
        return self.best / self.stay - 1.0 if self.stay > 0 else math.inf

    @property
    def break_even_s(self) -> float:
        """How long the slowness must last for the change to have paid off; infinite if the plan is not faster."""
        saved = 1.0 - self.stay / self.best if self.best > 0 else 0.0
        return self.change_s / saved if saved > 0 else math.inf


@dataclass(frozen=True)
class Advice:
    """What to do about an offer."""

    action: Literal["act", "wait", "stay"]
    reason: str
    again_in_s: float | None = None
    """`wait`: when the rent will equal the price."""


def horizon_s(expected_rest_s: float, age_s: float, left_s: float) -> float:
    """For how long a gain counts. `left_s`: until the job ends."""
    return min(max(expected_rest_s, age_s), left_s)


def weigh(offer: Offer, *, horizon_s: float, age_s: float, left_s: float, min_gain: float = MIN_GAIN) -> Advice:
    """Take the offer now, later, or never. `age_s`: how long the slowness has lasted.

    >>> half_speed = Offer(stay=600.0, best=900.0, change_s=2.0)
    >>> weigh(half_speed, horizon_s=600.0, age_s=3.0, left_s=86400.0).action
    'act'
    >>> dear = Offer(stay=950.0, best=1000.0, change_s=60.0)  # 5 % for a minute's standstill: pays off in 20 minutes
    >>> weigh(dear, horizon_s=600.0, age_s=3.0, left_s=86400.0)
    Advice(action='wait', reason='pays off after 1200 s, expected to last 600 s more', again_in_s=1197.0)
    >>> weigh(dear, horizon_s=1200.0, age_s=1200.0, left_s=86400.0).action
    'act'
    """
    if offer.gain < min_gain:
        return Advice("stay", f"the best plan is only {offer.gain:+.1%} faster (at least {min_gain:.0%} is asked for)")
    needed = offer.break_even_s
    if needed >= left_s:
        return Advice("stay", f"pays off after {needed:.0f} s, but the job ends in {left_s:.0f} s")
    if needed <= horizon_s:
        return Advice("act", f"pays off after {needed:.1f} s, expected to last {horizon_s:.0f} s")
    reason = f"pays off after {needed:.0f} s, expected to last {horizon_s:.0f} s more"
    return Advice("wait", reason, round(needed - age_s, 3))
