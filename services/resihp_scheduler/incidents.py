"""Records of incidents, from the events whose verdict opens them."""

from __future__ import annotations

from collections.abc import Collection

from resihp_messages import AnyEnvelope, event, new_id
from resihp_store import IncidentRecord, UnitOfWork


def incident_of(
    work: UnitOfWork,
    envelope: AnyEnvelope,
    body: event.DeviceSlow | event.JobHung,
    ranks: Collection[int] | None = None,
) -> IncidentRecord:
    """An open incident about `ranks` (default: all of the verdict); evidence, verdict and advice stay apart."""
    return IncidentRecord(
        id=new_id(),
        job=envelope.job,
        kind=body.verdict.fault,
        ranks=tuple(sorted(body.verdict.ranks if ranks is None else ranks)),
        node=body.verdict.node,
        evidence=dict(body.evidence),
        verdict=body.verdict.model_dump(mode="json"),
        advice=body.advice,
        resolution="",
        correlation_id=envelope.correlation_id or envelope.message_id,
        message_id=envelope.message_id,
        opened_at=work.now,
        closed_at=None,
    )
