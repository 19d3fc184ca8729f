"""Constants of peer comparison. Logarithmic units: 0.05 is about 5 %."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PeerConfig:
    """All thresholds of the device and link level. `docs/detection.md` says where each comes from and how to calibrate.

    `k`, `h`, `clip` grow together by the noise factor `f = max(1, noise_ratio * sigma * memory / k)`, where sigma is
    the robust deviation of healthy residuals and `memory` accounts for their autocorrelation: noisier jobs get slower
    alarms, not more.
    """

    skip: int = 2
    """Iterations ignored at the start of an epoch: compilation, allocation, caches."""
    warmup: int = 20
    """Iterations from which healthy time, device offsets and noise are learned."""
    k: float = 0.05
    """Reference value of the CUSUM: half of the smallest slowdown of interest (log 1.1)."""
    h: float = 0.5
    """Decision interval: 4 iterations at 1.2x, 11 at 1.1x."""
    clip: float = 0.25
    """What one iteration can contribute: one hiccup, whatever its size, never alarms; nor do two."""
    noise_ratio: float = 1.5
    """k is at least this many standard deviations."""
    max_noise_factor: float = 40.0
    """Noise beyond that would have to be followed by thresholds that nothing exceeds."""
    recovery_h: float = 0.3
    """Decision interval of the mirrored CUSUM."""
    recovery_reference: float = 0.1
    """Recovered means closer to the peers than this (or than half of the severity, if that is less)."""
    tolerance: float = 0.07
    """Devices of one kind differ by this much in health; offsets are followed within it."""
    tracking: float = 1.0 / 64.0
    """Rate at which offsets of benign devices and the common level are followed."""
    born_ratio: float = 4.0
    """A device whose offset exceeds this many deviations of its peers' offsets (and `tolerance`) was born slow."""
    born_share: float = 0.25
    """If more of a group than this would be born slow, the group is a mix of two kinds of devices instead."""
    heterogeneity: float = 0.1
    """Offsets beyond this, not born slow, are reported once as heterogeneity."""
    shift_k: float = 0.1
    """Reference value of the two-sided CUSUM on the peers' common level (interval and clip as above)."""
    quorum: float = 0.5
    """Share of a group's known devices that must report for an iteration to count."""
    few_peers: int = 4
    """In smaller groups a device must also have moved against its own healthy time."""
    window: int = 32
    """Residuals remembered per device, for the severity."""
    settle: int = 0
    """Iterations after which a device with a new share is judged again. 0: seconds follow shares exactly."""
    max_rows: int = 512
    """Rows per fit of the healthy time."""

    def scaled(self, factor: float) -> PeerConfig:
        """Looks for slowness that is `factor` times as large (in logarithmic units: 1.1x becomes 1.21x with 2), with
        the same patience. Raises ValueError unless it is positive and finite.

        >>> PeerConfig().scaled(2.0) == PeerConfig(k=0.1, h=1.0, clip=0.5, shift_k=0.2)
        True
        """
        if not 0.0 < factor < math.inf:
            raise ValueError(f"detection: a scale must be positive and finite, not {factor}")
        c = self
        return replace(c, k=c.k * factor, h=c.h * factor, clip=c.clip * factor, shift_k=c.shift_k * factor)

    @classmethod
    def for_clock(cls, *, virtual: bool, processor_time: bool) -> PeerConfig:
        """For seconds of virtual devices, for processor seconds of cores that others use too, or for those of devices.

        Caches, memory and the other thread of a core are shared even when processor time is counted: a process takes a
        tenth more of it for many iterations because of its neighbours. So there 1.2x is the smallest fault looked for.
        """
        if virtual:
            return cls()
        return cls(k=0.1, h=1.0, clip=0.4, shift_k=0.2, settle=10) if processor_time else cls(settle=10)

    def __post_init__(self) -> None:
        rules = {
            "skip >= 0": self.skip >= 0,
            "warmup >= 5": self.warmup >= 5,
            "0 < k < clip < h": 0 < self.k < self.clip < self.h,
            "noise_ratio > 0": self.noise_ratio > 0,
            "max_noise_factor >= 1": self.max_noise_factor >= 1,
            "recovery_h > 0": self.recovery_h > 0,
            "recovery_reference > 0": self.recovery_reference > 0,
            "0 < tolerance <= heterogeneity": 0 < self.tolerance <= self.heterogeneity,
            "0 <= tracking < 1": 0 <= self.tracking < 1,
            "born_ratio > 0": self.born_ratio > 0,
            "0 < born_share < 0.5": 0 < self.born_share < 0.5,
            "shift_k > 0": self.shift_k > 0,
            "0 < quorum <= 1": 0 < self.quorum <= 1,
            "few_peers >= 2": self.few_peers >= 2,
            "window >= 8": self.window >= 8,
            "settle >= 0": self.settle >= 0,
            "max_rows >= 32": self.max_rows >= 32,
        }
        for rule, holds in rules.items():
            if not holds:
                raise ValueError(f"detection: {rule} does not hold in {self}")
