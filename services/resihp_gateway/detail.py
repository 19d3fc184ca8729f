"""One reconfiguration in full: the record joined with its incident and plans, and what follows from them."""

from __future__ import annotations

from resihp_gateway.models import IncidentView, PlanView, ReconfigurationDetail, ReconfigurationView
from resihp_plan.plan import InvalidPlan, ParallelPlan
from resihp_store import IncidentRecord, PlanRecord, ReconfigurationRecord, queries
from resihp_store.queries import Connection


async def load(connection: Connection, record: ReconfigurationRecord) -> ReconfigurationDetail:
    """Read what belongs to it."""
    incident = await queries.incident(connection, record.incident_id) if record.incident_id else None
    epochs = (record.old_epoch, record.new_epoch)
    rows = await queries.plans(connection, record.job, from_epoch=min(epochs), to_epoch=max(epochs))
    plans = {p.epoch: p for p in rows}
    return build(record, incident, plans.get(record.old_epoch), plans.get(record.new_epoch))


def build(
    record: ReconfigurationRecord,
    incident: IncidentRecord | None,
    old: PlanRecord | None,
    new: PlanRecord | None,
) -> ReconfigurationDetail:
    """Pure."""
    view = ReconfigurationView.model_validate(record)
    return ReconfigurationDetail(
        **view.model_dump(exclude={"pause_s", "prediction_error"}),
        incident=IncidentView.model_validate(incident) if incident else None,
        old_plan=PlanView.model_validate(old) if old else None,
        new_plan=PlanView.model_validate(new) if new else None,
        lost_device_s=view.pause_s * _world(new) if view.pause_s is not None and new is not None else None,
    )


def _world(plan: PlanRecord) -> int:
    try:
        return len(ParallelPlan.from_dict(plan.plan).world)
    except InvalidPlan:
        return 0
