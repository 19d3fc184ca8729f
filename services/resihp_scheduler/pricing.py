"""What a change costs and for how long its gain lasts, for one job: the question with its price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from resihp_scheduler.aim import open_slow
from resihp_scheduler.calibration import Calibration
from resihp_scheduler.question import Question
from resihp_scheduler.rules.durations import COMPUTE
from resihp_scheduler.rules.ski_rental import horizon_s
from resihp_scheduler.situation import Situation
from resihp_store import ControlRecord, IncidentRecord

REPAIR_S = 20.4 * 3600.0
"""Median repair of a lost device (InfiniteHBD trace): for how long a loss, or a healthy state, lasts."""
REBUILD_S = 2.0
"""Groups and warm-up, before this job has changed its plan once (paper, section 8: below 2 s)."""


def question_of(
    situation: Situation,
    control: ControlRecord,
    *,
    alive: frozenset[int],
    speeds: Mapping[int, float],
    age_s: float = 0.0,
) -> Question:
    """The question for these devices. `age_s`: how long the slowness has lasted."""
    rest_s = COMPUTE.remaining_s(age_s) if speeds else REPAIR_S
    return Question(
        spec=situation.spec,
        devices=tuple((d.rank, d.node) for d in situation.devices),
        alive=alive,
        speeds=dict(speeds),
        plan=situation.plan_in_force(),
        epoch=situation.newest_epoch + 1,
        horizon_s=horizon_s(rest_s, age_s, left_s(situation)),
        rebuild_s=rebuild_s(situation),
        measured=calibration_of(control),
    )


def calibration_of(control: ControlRecord) -> Calibration | None:
    return Calibration.from_dict(control.calibration) if control.calibration is not None else None


def age_s(incidents: Sequence[IncidentRecord], now: datetime) -> float:
    """How long the oldest slowness that is not over has lasted; 0 if there is none."""
    since = [incident.opened_at for incident in open_slow(incidents).values()]
    return max(0.0, (now - min(since)).total_seconds()) if since else 0.0


def left_s(situation: Situation) -> float:
    """Until the job ends, at the predicted pace of the plan in force."""
    spec, plan = situation.spec, situation.in_force
    rate = plan.predicted_tokens_per_s if plan is not None else None
    if not rate:
        return REPAIR_S
    iterations = max(1, spec.iterations - situation.job.committed)
    return iterations * spec.batch.micro_batches * spec.batch.tokens_per_micro_batch / rate


def rebuild_s(situation: Situation) -> float:
    """Time without training of a change that moves no state: as measured in this job's last change, else published."""
    phases = [c.phases_s for c in situation.changes if c.applied_at is not None and c.mode != "initial"]
    return phases[-1].get("rebuild", REBUILD_S) if phases else REBUILD_S
