"""Whom to trust again: devices that recovered or returned, by their record.

The first time a device is taken back at once. After a relapse it must stay healthy for a while first, twice as long
each time; half-way it gets half of its work back. Faults long ago are forgiven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resihp_messages.thresholds import THRESHOLDS


@dataclass(frozen=True)
class Probation:
    """Times in seconds."""

    base_s: float = THRESHOLDS["probation_s"].default
    """After the first relapse."""
    longest_s: float = 3600.0
    memory_s: float = 86_400.0
    """Faults that ended longer ago do not count."""
    lemon: int = 4
    """So many faults within the memory, and the device is called a lemon in what is said about it."""

    def length_s(self, num_faults: int) -> float:
        """How long a device must stay healthy after its `num_faults`-th fault.

        >>> [Probation().length_s(n) for n in (1, 2, 3, 4, 9)]
        [0.0, 60.0, 120.0, 240.0, 3600.0]
        """
        if num_faults < 2:
            return 0.0
        return min(self.longest_s, self.base_s * 2.0 ** (num_faults - 2))


@dataclass(frozen=True)
class Standing:
    """How far a device is to be trusted now."""

    share: float
    """0: as slow as it was; 1: as its measured speed says."""
    again_in_s: float | None
    """When the share changes next, if it stays healthy."""
    note: str
    """For people; empty if there is nothing to say."""

    def speed(self, slow: float, measured: float) -> float:
        """The speed to plan with, between the one while it was slow and the measured one."""
        return slow + (measured - slow) * self.share


def standing(ended_s: Sequence[float], now_s: float, rule: Probation | None = None) -> Standing:
    """The standing of a healthy device whose faults ended at these times.

    >>> standing([100.0], 100.0).share
    1.0
    >>> standing([10.0, 100.0], 100.0)
    Standing(share=0.0, again_in_s=30.0, note='on probation for 60 s after 2 faults')
    >>> standing([10.0, 100.0], 135.0).share, standing([10.0, 100.0], 160.0).share
    (0.5, 1.0)
    """
    known = rule or Probation()
    recent = sorted(t for t in ended_s if now_s - t <= known.memory_s)
    length_s = known.length_s(len(recent))
    if not recent or length_s <= 0.0:
        return Standing(1.0, None, "")
    who = "a lemon, " if len(recent) >= known.lemon else ""
    note = f"{who}on probation for {length_s:.0f} s after {len(recent)} faults"
    served_s = now_s - recent[-1]
    for share, from_s in ((0.0, length_s / 2), (0.5, length_s)):
        if served_s < from_s:
            return Standing(share, from_s - served_s, note)
    return Standing(1.0, None, "")
