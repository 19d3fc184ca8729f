"""What a job achieved lately under a plan: it scales predictions until the job's own constants are measured.

Nominal constants tell plans apart, but are far from what a machine does (workers on shared cores: a tenth of it).
The factor between the two is data, found here; the one cost formula stays in `resihp_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from resihp_plan import ParallelPlan
from resihp_plan.cluster import Health
from resihp_scheduler.situation import Situation
from resihp_store import ControlRecord, queries
from resihp_store.pace import SEEN, settled_rate


@dataclass(frozen=True)
class Observed:
    """A plan that ran, and how fast."""

    plan: ParallelPlan
    tokens_per_s: float
    speeds: Health
    """Rank -> p of those that were not healthy."""

    def to_dict(self) -> dict[str, Any]:
        speeds = {str(rank): p for rank, p in self.speeds.items()}
        return {"plan": self.plan.to_dict(), "tokens_per_s": self.tokens_per_s, "speeds": speeds}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        speeds = {int(rank): p for rank, p in values["speeds"].items()}
        return cls(ParallelPlan.from_dict(values["plan"]), values["tokens_per_s"], speeds)


async def observed(connection: queries.Connection, situation: Situation, control: ControlRecord) -> Observed | None:
    """The newest plan of which a few iterations are known. None: nothing is known yet, or constants are measured.

    After a fault that is the plan in force, or the one before it if that was left at once.
    """
    if control.calibration is not None:
        return None
    after = max(0, situation.job.committed - SEEN)
    rows = await queries.iterations(connection, situation.name, after=after)
    for epoch in sorted({row.epoch for row in rows}, reverse=True):
        rate = settled_rate([row for row in rows if row.epoch == epoch])
        if rate is None:
            continue
        for record in await queries.plans(connection, situation.name, from_epoch=epoch, to_epoch=epoch):
            return Observed(ParallelPlan.from_dict(record.plan), rate, situation.speeds)
    return None
