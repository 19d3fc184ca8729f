"""What detection concludes. Evidence is numbers only a machine could have seen; the verdict is what follows from
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class VerdictKind(StrEnum):
    """Faults begin with what is slow; `HETEROGENEITY` and `WORKLOAD_SHIFT` are observations, never alarms."""

    DEVICE_SUSPECTED = "DeviceSuspected"
    """Half of the evidence for a slow device is there."""
    DEVICE_SLOW = "DeviceSlow"
    DEVICE_RECOVERED = "DeviceRecovered"
    LINK_SLOW = "LinkSlow"
    LINK_RECOVERED = "LinkRecovered"
    JOB_SLOW = "JobSlow"
    """Iterations take longer than their work explains; who is slow needs validation."""
    JOB_RECOVERED = "JobRecovered"
    STATE_DIVERGED = "StateDiverged"
    """Replicas hold different bits (`evidence["ranks"]`): silent corruption."""
    STATE_CORRUPTED = "StateCorrupted"
    """Of replicas that differed, these were damaged: the redone state says so."""
    HETEROGENEITY = "Heterogeneity"
    """Devices differ for good, within what their peers show too: said once."""
    WORKLOAD_SHIFT = "WorkloadShift"
    """All peers changed together (data, clocks of all devices): learned anew."""

    @property
    def is_alarm(self) -> bool:
        """True for a new fault."""
        return self in (
            VerdictKind.DEVICE_SLOW,
            VerdictKind.LINK_SLOW,
            VerdictKind.JOB_SLOW,
            VerdictKind.STATE_DIVERGED,
        )


@dataclass(frozen=True)
class Verdict:
    """One conclusion."""

    kind: VerdictKind
    iteration: int
    """Iteration whose report completed the evidence."""
    first_iteration: int
    """Estimate of the first iteration concerned."""
    group: str
    """Peers compared with each other: a stage, a kind of link."""
    device: str | None = None
    """None if the whole group or job is meant."""
    p: float = 1.0
    """Throughput relative to healthy, in (0, 1]."""
    p_low: float = 1.0
    p_high: float = 1.0
    """95 % interval of p."""
    confidence: float = 1.0
    """In [0, 1): 1 - probability that healthy noise of the calibrated size looks like this."""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON or MessagePack."""
        return {
            "kind": str(self.kind),
            "iteration": self.iteration,
            "first_iteration": self.first_iteration,
            "group": self.group,
            "device": self.device,
            "p": round(self.p, 4),
            "p_low": round(self.p_low, 4),
            "p_high": round(self.p_high, 4),
            "confidence": round(self.confidence, 6),
            "evidence": dict(self.evidence),
        }
