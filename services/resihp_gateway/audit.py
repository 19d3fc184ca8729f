"""The audit trail: pairs of `ActionRequested` and `ActionAnswered` events, joined by their correlation id."""

from __future__ import annotations

from collections.abc import Iterable

from resihp_gateway.models import AuditView
from resihp_store import EventRecord

REQUESTED, ANSWERED = "ActionRequested", "ActionAnswered"
NAMES = (REQUESTED, ANSWERED)


def trail(newest_first: Iterable[EventRecord]) -> list[AuditView]:
    """One entry per request, newest first."""
    answers: dict[str, EventRecord] = {}
    found = []
    for record in newest_first:
        if record.name == ANSWERED:
            answers[record.correlation_id] = record
            continue
        answer = answers.get(record.correlation_id)
        outcome = answer.body if answer else {}
        found.append(
            AuditView(
                sequence=record.sequence,
                asked_at=record.occurred_at,
                job=record.job,
                **{key: record.body[key] for key in ("action", "actor", "role", "client", "reason", "parameters")},
                accepted=outcome.get("accepted"),
                detail=outcome.get("detail", ""),
                reconfiguration_id=outcome.get("reconfiguration_id"),
            )
        )
    return found
