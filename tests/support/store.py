"""Rows for tests of the store, the scheduler, the gateway and the CLI."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from resihp_messages import JobSpec
from resihp_store import (
    DecisionOutcome,
    DecisionRecord,
    DeviceRecord,
    DeviceState,
    IncidentRecord,
    NodeRecord,
    NodeState,
    PlanRecord,
    ReconfigurationRecord,
    ReconfigurationStatus,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def spec(**changes: Any) -> dict[str, Any]:
    return JobSpec.model_validate(changes).model_dump(mode="json")


def node(name: str, **changes: Any) -> NodeRecord:
    values: dict[str, Any] = {
        "node": name,
        "incarnation": f"{name}-1",
        "host": "localhost",
        "comm_host": "127.0.0.1",
        "num_slots": 4,
        "store_address": "127.0.0.1:1000",
        "state": NodeState.UP,
        "joined_at": NOON,
        "changed_at": NOON,
    }
    return NodeRecord(**values | changes)


def device(job: str, rank: int, **changes: Any) -> DeviceRecord:
    values: dict[str, Any] = {
        "job": job,
        "rank": rank,
        "node": "n0",
        "slot": rank,
        "incarnation": "n0-1",
        "state": DeviceState.HEALTHY,
        "pid": 1000 + rank,
        "result": None,
        "changed_at": NOON,
    }
    return DeviceRecord(**values | changes)


def plan_row(job: str, epoch: int, **changes: Any) -> PlanRecord:
    values: dict[str, Any] = {
        "job": job,
        "epoch": epoch,
        "digest": f"{epoch:064x}",
        "plan": {"epoch": epoch},
        "predicted_tokens_per_s": 1000.0,
        "created_at": NOON,
        "installed_at": None,
    }
    return PlanRecord(**values | changes)


def incident(job: str, identifier: str = "i1", **changes: Any) -> IncidentRecord:
    values: dict[str, Any] = {
        "id": identifier,
        "job": job,
        "kind": "worker_lost",
        "ranks": (3,),
        "node": "n0",
        "evidence": {"exit_code": -9, "detect_s": 0.004},
        "verdict": {"fault": "worker_lost"},
        "advice": "exclude",
        "resolution": "",
        "correlation_id": identifier,
        "message_id": f"m-{identifier}",
        "opened_at": NOON,
        "closed_at": None,
    }
    return IncidentRecord(**values | changes)


def reconfiguration(job: str, identifier: str = "r1", **changes: Any) -> ReconfigurationRecord:
    values: dict[str, Any] = {
        "id": identifier,
        "job": job,
        "incident_id": None,
        "mode": "recovery",
        "status": ReconfigurationStatus.PLANNED,
        "attempt": 1,
        "old_epoch": 1,
        "new_epoch": 2,
        "old_digest": f"{1:064x}",
        "new_digest": f"{2:064x}",
        "reason": "rank 3 lost",
        "difference": "R1.S0 TP 2 -> 1",
        "alternatives": ({"name": "drop replica", "predicted_tokens_per_s": 500.0, "reason": "slower"},),
        "phases_s": {},
        "proof": {},
        "bytes_moved": None,
        "bound_tokens_per_s": 875.0,
        "predicted_tokens_per_s": 800.0,
        "achieved_tokens_per_s": None,
        "correlation_id": "i1",
        "outcome": "",
        "created_at": NOON,
        "applied_at": None,
        "closed_at": None,
        "predicted_by": "pace",
        "speed_share": 0.875,
    }
    return ReconfigurationRecord(**values | changes)


def decision(job: str, identifier: str = "d1", **changes: Any) -> DecisionRecord:
    values: dict[str, Any] = {
        "id": identifier,
        "job": job,
        "incident_id": None,
        "reconfiguration_id": None,
        "trigger": "rank 5 slow (p 0.50)",
        "question": {"speeds": {"5": 0.5}, "alive": [4, 5], "old_epoch": 1},
        "key": f"{1:032x}",
        "action": "advise",
        "outcome": DecisionOutcome.OPEN,
        "reason": "pays off after 7 s, expected to last 600 s",
        "difference": "R1 layers 4+4 -> 3+5",
        "plan": {"epoch": 2},
        "alternatives": ({"name": "stay", "predicted_tokens_per_s": 500.0, "reason": "slower"},),
        "predicted_tokens_per_s": 800.0,
        "stay_tokens_per_s": 600.0,
        "bound_tokens_per_s": 900.0,
        "planning_s": 0.02,
        "again_at": None,
        "note": "",
        "created_at": NOON,
        "closed_at": None,
    }
    return DecisionRecord(**values | changes)
