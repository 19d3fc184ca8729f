"""The numbers by which one job's changes are decided: the defaults, as far as its operators have not changed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from resihp_messages.thresholds import effective
from resihp_scheduler.rules.breaker import Breaker
from resihp_scheduler.rules.probation import Probation
from resihp_scheduler.rules.ski_rental import MIN_GAIN
from resihp_scheduler.rules.speeds import HYSTERESIS, SETTLED_S


@dataclass(frozen=True)
class Limits:
    """`resihp_messages.thresholds` has names, defaults and limits."""

    min_gain: float = MIN_GAIN
    hysteresis: float = HYSTERESIS
    settled_s: float = SETTLED_S
    probation: Probation = field(default_factory=Probation)
    breaker: Breaker = field(default_factory=Breaker)

    @classmethod
    def of(cls, changed: Mapping[str, float]) -> Self:
        """
        >>> Limits.of({}) == Limits()
        True
        >>> Limits.of({"breaker_changes": 2.0}).breaker.most_changes
        2
        """
        now = effective(changed)
        return cls(
            min_gain=now["min_gain"],
            hysteresis=now["hysteresis"],
            settled_s=now["settled_s"],
            probation=Probation(base_s=now["probation_s"]),
            breaker=Breaker(now["breaker_window_s"], round(now["breaker_changes"]), now["breaker_slow_share"]),
        )
