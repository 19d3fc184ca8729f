"""Pages of what happened, for people: filtered, sorted, resumed after a cursor. Same rules as `queries`.

A page is ordered by (time, id); `Page.after` is the last row's pair, so that rows that arrive between two pages are
neither skipped nor repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Select, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from resihp_store import tables as t
from resihp_store.queries import _incident, _reconfiguration, _values
from resihp_store.records import EventRecord, IncidentRecord, PlanRecord, ReconfigurationRecord


@dataclass(frozen=True)
class Page:
    """Which part of a list."""

    limit: int = 200
    newest_first: bool = False
    after: tuple[datetime, str] | None = None
    """(time, id) of the last row of the page before."""
    since: datetime | None = None
    """Inclusive."""
    until: datetime | None = None
    """Exclusive."""


async def incidents(
    connection: AsyncConnection,
    page: Page,
    *,
    job: str | None = None,
    kind: str | None = None,
    rank: int | None = None,
    is_open: bool | None = None,
) -> tuple[IncidentRecord, ...]:
    """Incidents by the time at which they were opened."""
    c = t.incidents.c
    query = _paged(select(t.incidents), c.opened_at, c.id, page)
    if job is not None:
        query = query.where(c.job == job)
    if kind is not None:
        query = query.where(c.kind == kind)
    if rank is not None:
        query = query.where(c.id.in_(_concerning(rank)))
    if is_open is not None:
        query = query.where(c.closed_at.is_(None) if is_open else c.closed_at.is_not(None))
    return tuple(_incident(row) for row in await connection.execute(query))


async def reconfigurations(
    connection: AsyncConnection,
    page: Page,
    *,
    job: str | None = None,
    status: str | None = None,
    mode: str | None = None,
    kind: str | None = None,
    rank: int | None = None,
) -> tuple[ReconfigurationRecord, ...]:
    """Changes of plan by the time at which they were decided; `kind` and `rank` are those of the incident behind."""
    c = t.reconfigurations.c
    query = _paged(select(t.reconfigurations), c.created_at, c.id, page)
    for column, value in ((c.job, job), (c.status, status), (c.mode, mode)):
        if value is not None:
            query = query.where(column == value)
    if kind is not None:
        query = query.where(exists().where(t.incidents.c.id == c.incident_id, t.incidents.c.kind == kind))
    if rank is not None:
        query = query.where(c.incident_id.in_(_concerning(rank)))
    return tuple(_reconfiguration(row) for row in await connection.execute(query))


async def events(
    connection: AsyncConnection,
    *,
    names: Sequence[str] = (),
    job: str | None = None,
    before_sequence: int | None = None,
    limit: int = 200,
) -> tuple[EventRecord, ...]:
    """Events of the database's own log, newest first."""
    e = t.events.c
    query = select(t.events).order_by(e.sequence.desc()).limit(limit)
    if job is not None:
        query = query.where(e.job == job)
    if before_sequence is not None:
        query = query.where(e.sequence < before_sequence)
    # One question per name: each is answered from an index in order, however rare the name is.
    asked = [query.where(e.name == name) for name in dict.fromkeys(names)] or [query]
    found = [EventRecord(**_values(row)) for q in asked for row in await connection.execute(q)]
    return tuple(sorted(found, key=lambda event: -event.sequence)[:limit])


async def achieved(connection: AsyncConnection, reconfiguration_ids: Collection[str]) -> dict[str, float | None]:
    """Id -> throughput after the change, in tokens/s."""
    r = t.reconfigurations.c
    query = select(r.id, r.achieved_tokens_per_s).where(r.id.in_(reconfiguration_ids))
    return {row.id: row.achieved_tokens_per_s for row in await connection.execute(query)}


async def first_plan(connection: AsyncConnection, job: str) -> PlanRecord | None:
    """The job's first plan."""
    query = select(t.plans).where(t.plans.c.job == job).order_by(t.plans.c.epoch).limit(1)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else PlanRecord(**_values(row))


async def devices_stamp(connection: AsyncConnection, job: str) -> tuple[Any, ...]:
    """Changes whenever a device of the job does: cheaper than reading thousands of rows to find them unchanged."""
    d = t.devices.c
    query = select(func.count(), func.max(d.changed_at), func.sum(d.start), func.sum(d.pid)).where(d.job == job)
    return tuple((await connection.execute(query)).one())


def _paged(query: Select[Any], time: Column[Any], identifier: Column[Any], page: Page) -> Select[Any]:
    down = page.newest_first
    if page.since is not None:
        query = query.where(time >= page.since)
    if page.until is not None:
        query = query.where(time < page.until)
    if page.after is not None:
        at, last = page.after
        beyond = (time < at) if down else (time > at)
        beyond_id = (identifier < last) if down else (identifier > last)
        in_reach = (time <= at) if down else (time >= at)  # implied, but an index can seek by it
        query = query.where(in_reach, or_(beyond, and_(time == at, beyond_id)))
    order = (time.desc(), identifier.desc()) if down else (time, identifier)
    return query.order_by(*order).limit(page.limit)


def _concerning(rank: int) -> Select[Any]:
    """Ids of the incidents that concerned `rank`."""
    return select(t.incident_ranks.c.incident_id).where(t.incident_ranks.c.rank == rank)
