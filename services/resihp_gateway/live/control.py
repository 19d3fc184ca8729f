"""What the scheduler may do on its own at the moment, and which decision waits for a person: from its own events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from resihp_store import EventRecord

NAMES = ("ModeChanged", "DecisionMade", "DecisionClosed")
OPEN = frozenset({"advise", "wait"})


def control(newest_first: Iterable[EventRecord], now: datetime) -> dict[str, Any]:
    """`mode`, `held`, `breaker_tripped`, `decision` (the newest open one, or None)."""
    mode: Mapping[str, Any] | None = None
    held = False
    closed: set[str] = set()
    decision: Mapping[str, Any] | None = None
    decided = False
    for record in newest_first:
        body = record.body
        if record.name == "ModeChanged" and mode is None:
            mode = body
            span = body.get("hold_s")
            held = bool(body.get("held")) and (span is None or now < record.occurred_at + timedelta(seconds=span))
        elif record.name == "DecisionClosed":
            closed.add(body["decision_id"])
        elif record.name == "DecisionMade" and not decided:
            decided = True  # an older decision is overtaken by this one
            if body["action"] in OPEN and body["decision_id"] not in closed:
                decision = body
    return {
        "mode": mode["mode"] if mode else "act",
        "held": held,
        "breaker_tripped": bool(mode and mode.get("breaker_tripped")),
        "decision": dict(decision) if decision else None,
    }
