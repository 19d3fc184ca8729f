"""What a change costs and for how long its gain lasts, for one job: the question with its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median

from resihp_scheduler.aim import open_slow
from resihp_scheduler.calibration import Calibration
from resihp_scheduler.pace import Observed
from resihp_scheduler.question import Question
from resihp_scheduler.rules.durations import COMPUTE
from resihp_scheduler.rules.ski_rental import horizon_s
from resihp_scheduler.situation import Situation
from resihp_store import ControlRecord, IncidentRecord, queries

REPAIR_S = 20.4 * 3600.0
"""Median repair of a lost device (InfiniteHBD trace): for how long a loss, or a healthy state, lasts."""
NEWEST = 8
"""Iterations whose median is the present pace."""
REBUILD_S = 2.0
"""Groups and warm-up, before this job has changed its plan once (paper, section 8: below 2 s)."""


def question_of(
    situation: Situation,
    control: ControlRecord,
    *,
    alive: frozenset[int],
    speeds: Mapping[int, float],
    left_s: float,
    observed: Observed | None,
    age_s: float = 0.0,
) -> Question:
    """The question for these devices. `left_s`: until the job ends; `age_s`: how long the slowness has lasted."""
    rest_s = COMPUTE.remaining_s(age_s) if speeds else REPAIR_S
    return Question(
        spec=situation.spec,
        devices=tuple((d.rank, d.node) for d in situation.devices),
        alive=alive,
        speeds=dict(speeds),
        plan=situation.plan_in_force(),
        epoch=situation.newest_epoch + 1,
        horizon_s=horizon_s(rest_s, age_s, left_s),
        rebuild_s=rebuild_s(situation),
        measured=calibration_of(control),
        observed=observed,
    )


def calibration_of(control: ControlRecord) -> Calibration | None:
    return Calibration.from_dict(control.calibration) if control.calibration is not None else None


def age_s(incidents: Sequence[IncidentRecord], now: datetime) -> float:
    """How long the oldest slowness that is not over has lasted; 0 if there is none."""
    since = [incident.opened_at for incident in open_slow(incidents).values()]
    return max(0.0, (now - min(since)).total_seconds()) if since else 0.0


async def left_s(connection: queries.Connection, situation: Situation) -> float:
    """Until the job ends, at the pace of its newest iterations (nominal predictions of a real clock may be far off)."""
    done = situation.job.committed
    rows = await queries.iterations(connection, situation.name, after=max(0, done - NEWEST))
    if not rows:
        return REPAIR_S
    return max(1, situation.spec.iterations - done) * median(row.step_s for row in rows)


def rebuild_s(situation: Situation) -> float:
    """Time without training of a change that moves no state: as measured in this job's last change, else published."""
    phases = [c.phases_s for c in situation.changes if c.applied_at is not None and c.mode != "initial"]
    return phases[-1].get("rebuild", REBUILD_S) if phases else REBUILD_S
