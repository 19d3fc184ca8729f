"""What the scheduler may do on its own at the moment, and which decision waits for a person."""

from __future__ import annotations

from datetime import datetime

from resihp_gateway.models import ControlView, OpenDecision, ThresholdView
from resihp_messages.thresholds import THRESHOLDS, effective
from resihp_store import DecisionOutcome, decisions
from resihp_store.queries import Connection


async def governed(connection: Connection, job: str, now: datetime) -> ControlView:
    """As the database has it; `now` decides whether a protection is over."""
    record = await decisions.control(connection, job)
    waiting = await decisions.decisions(connection, job, outcome=DecisionOutcome.OPEN, newest_first=True, limit=1)
    held = record.holds(now)
    values = effective(record.thresholds)
    return ControlView(
        mode=str(record.mode),
        held=held,
        held_until=record.held_until if held else None,
        breaker=record.breaker,
        evicted=tuple(sorted(record.evicted)),
        thresholds=[
            ThresholdView(
                name=name,
                value=values[name],
                default=limits.default,
                low=limits.low,
                high=limits.high,
                meaning=limits.meaning,
            )
            for name, limits in THRESHOLDS.items()
        ],
        decision=OpenDecision.model_validate(waiting[0]) if waiting else None,
    )
