"""One reconfiguration in full: the record joined with its incident and plans, and what follows from them."""

from __future__ import annotations

from resihp_gateway.models import IncidentView, PlanView, ReconfigurationDetail, ReconfigurationView
from resihp_plan.plan import InvalidPlan, ParallelPlan
from resihp_store import IncidentRecord, PlanRecord, ReconfigurationRecord, queries
from resihp_store.queries import Connection


async def load(connection: Connection, record: ReconfigurationRecord) -> ReconfigurationDetail:
    """Read what belongs to it."""
    incident = await queries.incident(connection, record.incident_id) if record.incident_id else None
    first = min(record.old_epoch, record.new_epoch)
    plans = {p.epoch: p for p in await queries.plans(connection, record.job, from_epoch=first)}
    return build(record, incident, plans.get(record.old_epoch), plans.get(record.new_epoch))


def build(
    record: ReconfigurationRecord,
    incident: IncidentRecord | None,
    old: PlanRecord | None,
    new: PlanRecord | None,
) -> ReconfigurationDetail:
    """Pure."""
    view = ReconfigurationView.model_validate(record)
    predicted, achieved = record.predicted_tokens_per_s, record.achieved_tokens_per_s
    pause_s = pause(view)
    return ReconfigurationDetail(
        **view.model_dump(),
        incident=IncidentView.model_validate(incident) if incident else None,
        old_plan=PlanView.model_validate(old) if old else None,
        new_plan=PlanView.model_validate(new) if new else None,
        prediction_error=achieved / predicted - 1 if achieved and predicted else None,
        pause_s=pause_s,
        lost_device_s=pause_s * _world(new) if pause_s is not None and new is not None else None,
    )


def pause(view: ReconfigurationView) -> float | None:
    """Seconds without training: the outage of a recovery; of a planned change only what happens between iterations."""
    if view.mode == "recovery":
        return view.phases_s.get("total")
    parts = [view.phases_s.get(phase) for phase in ("rebuild", "move")]
    return sum(p or 0.0 for p in parts) if any(p is not None for p in parts) else None


def _world(plan: PlanRecord) -> int:
    try:
        return len(ParallelPlan.from_dict(plan.plan).world)
    except InvalidPlan:
        return 0
