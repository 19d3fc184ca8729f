"""Reads, on SQLite and PostgreSQL alike. Every function takes a connection from `Store.read()` (or a unit of work)."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, and_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from resihp_store import tables as t
from resihp_store.lease import NOW
from resihp_store.records import (
    AckRecord,
    DeviceRecord,
    DeviceState,
    EventRecord,
    IncidentRecord,
    IterationRecord,
    JobRecord,
    JobState,
    LeaseRecord,
    NodeRecord,
    NodeState,
    PlanRecord,
    ReconfigurationRecord,
    ReconfigurationStatus,
)

Connection = AsyncConnection
_ENDED = [str(state) for state in JobState if state.ended]


async def jobs(connection: Connection, *, states: Collection[JobState] | None = None) -> tuple[JobRecord, ...]:
    """All jobs (or those in `states`), in order of submission."""
    query = _jobs()
    if states is not None:
        query = query.where(t.jobs.c.state.in_([str(s) for s in states]))
    return tuple(_job(row) for row in await connection.execute(query))


async def job(connection: Connection, name: str) -> JobRecord | None:
    row = (await connection.execute(_jobs().where(t.jobs.c.job == name))).one_or_none()
    return None if row is None else _job(row)


def _jobs() -> Select[Any]:
    p = t.plans.c
    # Looked up from the end of each job's plans: a maximum over all of them would read them all.
    newest = (
        select(p.epoch)
        .where(p.job == t.jobs.c.job, p.installed_at.is_not(None))
        .order_by(p.epoch.desc())
        .limit(1)
        .correlate(t.jobs)
        .scalar_subquery()
    )
    of_newest = and_(p.job == t.jobs.c.job, p.epoch == newest)
    return (
        select(t.jobs, p.epoch, p.digest.label("plan_digest")).outerjoin(t.plans, of_newest).order_by(t.jobs.c.number)
    )


def _job(row: Row[Any]) -> JobRecord:
    values = _values(row)
    del values["number"]
    values["state"] = JobState(values["state"])
    values["epoch"] = values["epoch"] or 0
    return JobRecord(**values, iterations=int(values["spec"]["iterations"]))


async def nodes(connection: Connection) -> tuple[NodeRecord, ...]:
    """Every node ever seen, by name."""
    rows = await connection.execute(select(t.nodes).order_by(t.nodes.c.node))
    return tuple(NodeRecord(**{**_values(row), "state": NodeState(row.state)}) for row in rows)


async def devices(connection: Connection, job_name: str) -> tuple[DeviceRecord, ...]:
    """The job's devices by rank; empty before slots are dealt."""
    rows = await connection.execute(select(t.devices).where(t.devices.c.job == job_name).order_by(t.devices.c.rank))
    return tuple(_device(row) for row in rows)


async def occupied(connection: Connection) -> tuple[DeviceRecord, ...]:
    """Devices of all jobs that have not ended: the slots that are taken."""
    query = select(t.devices).join(t.jobs).where(t.jobs.c.state.not_in(_ENDED))
    rows = await connection.execute(query.order_by(t.devices.c.job, t.devices.c.rank))
    return tuple(_device(row) for row in rows)


def _device(row: Row[Any]) -> DeviceRecord:
    return DeviceRecord(**{**_values(row), "state": DeviceState(row.state)})


async def plans(
    connection: Connection,
    job_name: str,
    *,
    from_epoch: int = 0,
    to_epoch: int | None = None,
    limit: int | None = None,
) -> tuple[PlanRecord, ...]:
    """Every plan issued for the job (of `from_epoch` or later, up to `to_epoch`), by epoch; at most `limit`."""
    p = t.plans.c
    query = select(t.plans).where(p.job == job_name, p.epoch >= from_epoch).order_by(p.epoch).limit(limit)
    if to_epoch is not None:
        query = query.where(p.epoch <= to_epoch)
    return tuple(PlanRecord(**_values(row)) for row in await connection.execute(query))


async def incidents(
    connection: Connection, *, job_name: str | None = None, only_open: bool = False
) -> tuple[IncidentRecord, ...]:
    """All incidents (of one job), oldest first."""
    query = select(t.incidents).order_by(t.incidents.c.opened_at, t.incidents.c.id)
    if job_name is not None:
        query = query.where(t.incidents.c.job == job_name)
    if only_open:
        query = query.where(t.incidents.c.closed_at.is_(None))
    return tuple(_incident(row) for row in await connection.execute(query))


async def ended_incidents(connection: Connection, job_name: str, *, since: datetime) -> tuple[IncidentRecord, ...]:
    """Those of the job that were closed at `since` or later, oldest first."""
    c = t.incidents.c
    query = select(t.incidents).where(c.job == job_name, c.closed_at >= since).order_by(c.opened_at, c.id)
    return tuple(_incident(row) for row in await connection.execute(query))


async def incident(connection: Connection, incident_id: str) -> IncidentRecord | None:
    row = (await connection.execute(select(t.incidents).where(t.incidents.c.id == incident_id))).one_or_none()
    return None if row is None else _incident(row)


def _incident(row: Row[Any]) -> IncidentRecord:
    return IncidentRecord(**{**_values(row), "ranks": tuple(row.ranks)})


async def reconfigurations(
    connection: Connection,
    *,
    job_name: str | None = None,
    status: ReconfigurationStatus | None = None,
    from_epoch: int = 0,
) -> tuple[ReconfigurationRecord, ...]:
    """All reconfigurations (of one job, in one status, to `from_epoch` or later), oldest first."""
    r = t.reconfigurations.c
    query = select(t.reconfigurations).order_by(r.created_at, r.job, r.new_epoch).where(r.new_epoch >= from_epoch)
    if job_name is not None:
        query = query.where(r.job == job_name)
    if status is not None:
        query = query.where(r.status == str(status))
    return tuple(_reconfiguration(row) for row in await connection.execute(query))


async def reconfiguration(connection: Connection, reconfiguration_id: str) -> ReconfigurationRecord | None:
    query = select(t.reconfigurations).where(t.reconfigurations.c.id == reconfiguration_id)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else _reconfiguration(row)


def _reconfiguration(row: Row[Any]) -> ReconfigurationRecord:
    values = _values(row)
    values |= {"status": ReconfigurationStatus(row.status), "alternatives": tuple(row.alternatives)}
    return ReconfigurationRecord(**values)


async def acks(connection: Connection, reconfiguration_id: str) -> tuple[AckRecord, ...]:
    """Acknowledgements of a reconfiguration, by node and name."""
    a = t.acks.c
    query = select(t.acks).where(a.reconfiguration_id == reconfiguration_id).order_by(a.node, a.name)
    return tuple(AckRecord(**_values(row)) for row in await connection.execute(query))


async def events(
    connection: Connection,
    *,
    after_sequence: int = 0,
    job_name: str | None = None,
    name: str | None = None,
    limit: int = 1000,
) -> tuple[EventRecord, ...]:
    """Events that the scheduler saw or emitted after `after_sequence`, in order, at most `limit`."""
    e = t.events.c
    query = select(t.events).where(e.sequence > after_sequence).order_by(e.sequence).limit(limit)
    if job_name is not None:
        query = query.where(e.job == job_name)
    if name is not None:
        query = query.where(e.name == name)
    return tuple(EventRecord(**_values(row)) for row in await connection.execute(query))


async def newest_event(connection: Connection, job_name: str, name: str) -> EventRecord | None:
    """The job's last event of this name."""
    e = t.events.c
    query = select(t.events).where(e.job == job_name, e.name == name).order_by(e.sequence.desc()).limit(1)
    row = (await connection.execute(query)).one_or_none()
    return EventRecord(**_values(row)) if row is not None else None


async def iterations(
    connection: Connection, job_name: str, *, after: int = 0, epoch: int | None = None, limit: int = 1000
) -> tuple[IterationRecord, ...]:
    """Committed iterations after number `after` (of one epoch), in order, at most `limit`."""
    i = t.iterations.c
    query = select(t.iterations).where(i.job == job_name, i.iteration > after).order_by(i.iteration).limit(limit)
    if epoch is not None:
        query = query.where(i.epoch == epoch)
    return tuple(IterationRecord(**_values(row)) for row in await connection.execute(query))


async def cursor(connection: Connection, name: str) -> int:
    """How far a stream was read; 0 before its first message."""
    query = select(t.cursors.c.sequence).where(t.cursors.c.name == name)
    return int((await connection.execute(query)).scalar_one_or_none() or 0)


async def lease(connection: Connection, name: str = "scheduler") -> LeaseRecord | None:
    """Who leads, or None if nobody ever did."""
    now = text(NOW[connection.dialect.name])
    query = select(t.leader.c.holder, t.leader.c.token, (t.leader.c.expires_at - now).label("remaining_s"))
    row = (await connection.execute(query.where(t.leader.c.name == name))).one_or_none()
    return None if row is None or not row.holder else LeaseRecord(row.holder, row.token, float(row.remaining_s))


def _values(row: Row[Any]) -> dict[str, Any]:
    return dict(row._mapping)
