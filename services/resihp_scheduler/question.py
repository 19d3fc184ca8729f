"""What is asked of the planner, as plain data: it is answered in another process, and kept in the database."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from resihp_messages import JobSpec
from resihp_messages.thresholds import DETECTION
from resihp_plan import Cluster, Device, ParallelPlan
from resihp_plan.cluster import Health
from resihp_scheduler.calibration import Calibration
from resihp_scheduler.pace import Observed


@dataclass(frozen=True)
class Question:
    """The best plan for devices at these speeds?"""

    spec: JobSpec
    devices: tuple[tuple[int, str], ...]
    """(rank, node) of all devices of the job."""
    alive: frozenset[int]
    speeds: Mapping[int, float]
    """Rank -> p of living ranks that are not healthy."""
    plan: ParallelPlan
    """In force."""
    epoch: int
    """Of the new plan."""
    horizon_s: float
    """For how long a gain counts."""
    rebuild_s: float
    """Time without training of a change that moves no state."""
    measured: Calibration | None = None
    observed: Observed | None = None

    @property
    def cluster(self) -> Cluster:
        return Cluster(tuple(Device(rank, node) for rank, node in self.devices))

    @property
    def health(self) -> Health:
        """For the planner: 0 for whoever cannot be used."""
        return {rank: self.speeds.get(rank, 1.0) if rank in self.alive else 0.0 for rank, _ in self.devices}

    @property
    def newcomers(self) -> frozenset[int]:
        """Living ranks that the plan in force does not know."""
        return self.alive - set(self.plan.world)

    def to_dict(self) -> dict[str, Any]:
        return {
            "spec": self.spec.model_dump(mode="json"),
            "devices": [list(d) for d in self.devices],
            "alive": sorted(self.alive),
            "speeds": {str(rank): p for rank, p in self.speeds.items()},
            "plan": self.plan.to_dict(),
            "epoch": self.epoch,
            "horizon_s": self.horizon_s,
            "rebuild_s": self.rebuild_s,
            "measured": self.measured.to_dict() if self.measured is not None else None,
            "observed": self.observed.to_dict() if self.observed is not None else None,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        measured, observed = values["measured"], values["observed"]
        return cls(
            spec=JobSpec.model_validate(values["spec"]),
            devices=tuple((rank, node) for rank, node in values["devices"]),
            alive=frozenset(values["alive"]),
            speeds={int(rank): p for rank, p in values["speeds"].items()},
            plan=ParallelPlan.from_dict(values["plan"]),
            epoch=values["epoch"],
            horizon_s=values["horizon_s"],
            rebuild_s=values["rebuild_s"],
            measured=Calibration.from_dict(measured) if measured is not None else None,
            observed=Observed.from_dict(observed) if observed is not None else None,
        )


def key_of(alive: Collection[int], speeds: Mapping[int, float], thresholds: Mapping[str, float] | None = None) -> str:
    """Equal for the same devices at the same speeds under the same rules, whatever plan runs: what was weighed is not
    weighed again. `thresholds`: those that differ from their defaults; those of detection are no rules of it."""
    unlike = sorted((rank, round(p, 3)) for rank, p in speeds.items() if rank in alive and p != 1.0)
    rules = {name: value for name, value in sorted((thresholds or {}).items()) if name not in DETECTION}
    return hashlib.sha256(json.dumps([sorted(alive), unlike, *([rules] if rules else [])]).encode()).hexdigest()[:32]
