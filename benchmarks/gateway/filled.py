"""A database with a long past: one job, many reconfigurations (each with its incident), and events of all kinds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import insert

from resihp_messages import JobSpec
from resihp_store import Store
from resihp_store import tables as t
from resihp_store.revisions import upgrade

JOB = "long"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
CHUNK = 20_000
NAMES = ("WorkerExited", "ReconfigurationPlanned", "ReconfigurationApplied", "DeviceSlow", "DeviceRecovered")
RARE = "StateDiverged"
"""One event in 100,000."""


async def fill(url: str, changes: int, events: int) -> None:
    """Creates the schema and writes the rows."""
    await upgrade(url)
    store = Store(url)
    token = await store.lease(holder="fill", ttl_s=3600).acquire()
    assert token is not None
    async with store.transaction(token) as work:
        await work.add_job(JOB, JobSpec(name=JOB).model_dump(mode="json"))
        for table, row, count in (
            (t.incidents, _incident, changes),
            (t.reconfigurations, _change, changes),
            (t.events, _event, events),
        ):
            for first in range(0, count, CHUNK):
                rows = [row(k) for k in range(first, min(first + CHUNK, count))]
                await work.connection.execute(insert(table), rows)
    await store.close()


def _incident(k: int) -> dict[str, object]:
    return {
        "id": f"i{k:07}", "job": JOB, "kind": ("worker_lost", "device_slow")[k % 2], "ranks": [k % 256], "node": "n0",
        "evidence": {"exit_code": -9, "detect_s": 0.01}, "verdict": {"fault": "worker_lost", "ranks": [k % 256]},
        "advice": "exclude", "resolution": "", "correlation_id": f"i{k}", "message_id": f"mi{k}",
        "opened_at": BEGIN + timedelta(seconds=60 * k), "closed_at": BEGIN + timedelta(seconds=60 * k + 2),
    }  # fmt: skip


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
        "message_id": f"e{k}", "job": JOB, "epoch": k, "name": RARE if k % 100_000 == 7 else NAMES[k % len(NAMES)],
        "source": "scheduler", "correlation_id": f"c{k}", "occurred_at": BEGIN + timedelta(seconds=k),
        "body": {"rank": k % 256, "node": "n0", "detail": "x" * 100},
    }  # fmt: skip
