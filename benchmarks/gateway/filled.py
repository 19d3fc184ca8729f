"""A database with a long past: one job, many reconfigurations (each with its incident), and events of all kinds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import insert

from resihp_messages import JobSpec
from resihp_plan import Cluster, ModelSpec
from resihp_plan.planner import plan_initial
from resihp_store import JobState, Store, queries
from resihp_store import tables as t
from resihp_store.revisions import upgrade

JOB = "long"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CHUNK = 5000
NAMES = ("WorkerExited", "ReconfigurationPlanned", "ReconfigurationApplied", "DeviceSlow", "DeviceRecovered")
SHAPE = ModelSpec(num_layers=80, num_heads=8, num_kv_heads=8)
HEALTHY = plan_initial(Cluster.of(256), SHAPE, 4, 16, 4, 32).to_dict()
KINDS = ("worker_lost", "device_slow")
RARE = "StateDiverged"
"""One event in 50,000; so are requests of operators."""


async def fill(url: str, changes: int, events: int) -> None:
    """Creates the schema and writes the rows, unless that was done before. Raises ValueError for a half-filled one."""
    await upgrade(url)
    store = Store(url, idle_in_transaction_s=0.0)  # a busy machine may take long between two statements
    try:
        async with store.read() as connection:
            known = await queries.job(connection, JOB)
        if known is not None and known.state is not JobState.RUNNING:
            raise ValueError(f"{url} was filled by half: give an empty database")
        if known is None:
            await _fill(store, changes, events)
    finally:
        await store.close()


async def _fill(store: Store, changes: int, events: int) -> None:
    token = await store.lease(holder="fill", ttl_s=3600).acquire()
    assert token is not None
    async with store.transaction(token) as work:
        await work.add_job(JOB, JobSpec(name=JOB).model_dump(mode="json"))
    for table, row, count in (
        (t.incidents, _incident, changes),
        (t.incident_ranks, _concerned, changes),
        (t.reconfigurations, _change, changes),
        (t.decisions, _decision, changes),
        (t.plans, _plan, changes),
        (t.events, _event, events),
    ):
        for first in range(0, count, CHUNK):
            rows = [row(k) for k in range(first, min(first + CHUNK, count))]
            async with store.transaction(token) as work:
                await work.connection.execute(insert(table), rows)
    async with store.transaction(token) as work:
        await work.set_job(JOB, JobState.RUNNING)


def _incident(k: int) -> dict[str, object]:
    return {
        "id": f"i{k:07}", "job": JOB, "kind": "state_diverged" if k % 1000 == 7 else KINDS[k % 2],
        "ranks": [k % 256], "node": "n0", "evidence": {"exit_code": -9, "detect_s": 0.01},
        "verdict": {"fault": "worker_lost", "ranks": [k % 256]},
        "advice": "exclude", "resolution": "", "correlation_id": f"i{k}", "message_id": f"mi{k}",
        "opened_at": BEGIN + timedelta(seconds=60 * k), "closed_at": BEGIN + timedelta(seconds=60 * k + 2),
    }  # fmt: skip


def _concerned(k: int) -> dict[str, object]:
    return {"incident_id": f"i{k:07}", "rank": k % 256}


def _change(k: int) -> dict[str, object]:
    at = BEGIN + timedelta(seconds=60 * k)
    phases = {"detect": 0.01, "plan": 0.1, "abort": 0.03, "rebuild": 0.1, "move": 0.2, "redo": 0.5, "total": 0.9}
    lost = {"name": "drop replica", "difference": "R1 dropped", "predicted_tokens_per_s": 700.0, "reason": "slower"}
    return {
        "id": f"r{k:07}", "job": JOB, "incident_id": f"i{k:07}", "mode": "recovery", "status": "applied", "attempt": 1,
        "old_epoch": k, "new_epoch": k + 1, "old_digest": "0" * 64, "new_digest": "1" * 64, "reason": "rank lost",
        "difference": "R0.S1 TP 2 -> 1", "alternatives": [lost] * 5, "phases_s": phases,
        "proof": {"samples_once": True, "digests_equal": True}, "bytes_moved": 10**7, "bound_tokens_per_s": 875.0,
        "predicted_tokens_per_s": 800.0, "achieved_tokens_per_s": 790.0, "correlation_id": f"i{k}", "outcome": "",
        "created_at": at, "applied_at": at, "closed_at": at,
    }  # fmt: skip


def _event(k: int) -> dict[str, object]:
    return {
        "message_id": f"e{k}", "job": JOB, "epoch": k, "name": _name(k),
        "source": "scheduler", "correlation_id": f"c{k}", "occurred_at": BEGIN + timedelta(seconds=k),
        "body": _body(k),
    }  # fmt: skip


def _name(k: int) -> str:
    return {7: RARE, 8: "ActionRequested", 9: "ActionAnswered"}.get(k % 50_000, NAMES[k % len(NAMES)])


def _body(k: int) -> dict[str, object]:
    if _name(k) == "ActionRequested":
        asker = {"actor": "alice", "role": "operate", "client": "127.0.0.1"}
        return {"action": "RequestHold", **asker, "reason": "evaluation", "parameters": {"for_s": 60}}
    return {"rank": k % 256, "node": "n0", "detail": "x" * 100}


def _plan(k: int) -> dict[str, object]:
    plan = {**HEALTHY, "epoch": k + 1}
    at = BEGIN + timedelta(seconds=60 * k)
    return {
        "job": JOB, "epoch": k + 1, "digest": "1" * 64, "plan": plan, "predicted_tokens_per_s": 800.0, "created_at": at,
        "installed_at": at,
    }  # fmt: skip


def _decision(k: int) -> dict[str, object]:
    at = BEGIN + timedelta(seconds=60 * k)
    return {
        "id": f"d{k:07}", "job": JOB, "incident_id": f"i{k:07}", "reconfiguration_id": f"r{k:07}",
        "trigger": "rank lost", "question": {"speeds": {}, "alive": list(range(255)), "old_epoch": k}, "key": "0" * 32,
        "action": "repair", "outcome": "acted", "reason": "fast plan", "difference": "R0.S1 TP 2 -> 1",
        "plan": {"epoch": k, "replicas": []}, "alternatives": [], "predicted_tokens_per_s": 800.0,
        "stay_tokens_per_s": None, "bound_tokens_per_s": 875.0,
        "planning_s": 0.1, "again_at": None, "note": "", "created_at": at, "closed_at": at,
    }  # fmt: skip
