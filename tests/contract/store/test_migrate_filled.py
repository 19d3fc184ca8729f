"""Upgrades of databases that hold something: from the first, a middle and the last revision before this one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from resihp_store import Store, history, queries
from resihp_store.engine import parse_url, writer_engine
from resihp_store.revisions import config, head_revision, upgrade

OLDER = sorted({s.revision for s in ScriptDirectory.from_config(config()).walk_revisions()} - {head_revision()})
NOW = datetime(2026, 5, 4, 12, 30, 15, 250_000, tzinfo=UTC)
JOB = "old"
RANKS = [3]
ROWS = 3
WORDS = {
    ("jobs", "state"): "finished",
    ("nodes", "state"): "up",
    ("devices", "state"): "lost",
    ("reconfigurations", "mode"): "recovery",
    ("reconfigurations", "status"): "applied",
    ("controls", "mode"): "act",
}
JSON_VALUES: dict[str, Any] = {
    "ranks": RANKS,
    "alternatives": [],
    "phases_s": {"total": 1.5},
    "proof": {},
    "result": None,
    "spec": {"iterations": 9},
}


def value(column: sa.Column[Any], number: int, *, is_postgresql: bool) -> Any:
    """Something valid that tells rows apart."""
    if column.name == "job":
        return JOB
    if (column.table.name, column.name) in WORDS:
        return WORDS[column.table.name, column.name]
    if (column.table.name, column.name) == ("incident_ranks", "rank"):
        return RANKS[0]
    if column.foreign_keys:
        return str(number)
    kind = column.type
    if isinstance(kind, sa.JSON):
        return JSON_VALUES.get(column.name, {"number": number})
    if isinstance(kind, sa.DateTime):
        return NOW if is_postgresql else NOW.replace(tzinfo=None)
    if isinstance(kind, sa.Boolean):
        return True
    if isinstance(kind, sa.Integer | sa.BigInteger):
        return number
    if isinstance(kind, sa.Float):
        return number + 0.5
    if isinstance(kind, sa.LargeBinary):
        return bytes([number])
    return str(number)


def fill(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """One job, and rows for it in every table of this revision; returns what was written."""
    found = sa.MetaData()
    found.reflect(connection)
    is_postgresql = connection.dialect.name == "postgresql"
    for table in found.sorted_tables:
        if table.name == "alembic_version":
            continue
        alone = {c.name for c in table.primary_key} <= {"job"} or table.name == "leader"
        for number in range(1, 2 if alone else ROWS + 1):
            row = {c.name: value(c, number, is_postgresql=is_postgresql) for c in table.columns}
            connection.execute(table.insert().values(**row))
    return read(connection)


def read(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    found = sa.MetaData()
    found.reflect(connection)
    return {
        table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
        for table in found.sorted_tables
        if table.name != "alembic_version"
    }


@pytest.mark.parametrize("revision", sorted({OLDER[0], OLDER[len(OLDER) // 2], OLDER[-1]}))
async def test_nothing_is_lost(database_url: str, revision: str) -> None:
    engine = writer_engine(parse_url(database_url))
    async with engine.begin() as connection:
        await connection.run_sync(lambda c: command.upgrade(config(c), revision))
    async with engine.begin() as connection:
        before = await connection.run_sync(fill)
    assert before["reconfigurations"], "nothing was filled in"
    assert all(before.values())

    assert await upgrade(database_url) == head_revision()

    async with engine.connect() as connection:
        after = await connection.run_sync(read)
    await engine.dispose()
    for table, rows in before.items():
        kept = [{name: new[name] for name in rows[0]} for new in after[table]]
        assert sorted(kept, key=str) == sorted(rows, key=str), table

    store = Store(database_url)
    await store.open()
    try:
        async with store.read() as reading:
            assert [job.job for job in await queries.jobs(reading)] == [JOB]
            for records in (queries.devices, queries.plans, queries.iterations):
                assert len(await records(reading, JOB)) == ROWS
            assert len(await queries.incidents(reading, job_name=JOB)) == ROWS
            assert len(await history.incidents(reading, history.Page(), rank=RANKS[0])) == ROWS
            assert len(await history.reconfigurations(reading, history.Page(), rank=RANKS[0])) == ROWS
            (newest, *_) = await queries.reconfigurations(reading, job_name=JOB)
            assert (newest.phases_s, newest.created_at) == (JSON_VALUES["phases_s"], NOW)
            assert len(await queries.nodes(reading)) == ROWS
    finally:
        await store.close()


async def test_the_newest_revision_goes_down_and_up_again(database_url: str) -> None:
    """What it adds is derived from what was there: it comes back."""
    engine = writer_engine(parse_url(database_url))
    async with engine.begin() as connection:
        await connection.run_sync(lambda c: command.upgrade(config(c), OLDER[-1]))
        before = await connection.run_sync(fill)
    assert await upgrade(database_url) == head_revision()
    async with engine.begin() as connection:
        up = await connection.run_sync(read)
        await connection.run_sync(lambda c: command.downgrade(config(c), OLDER[-1]))
        assert await connection.run_sync(read) == before
    assert await upgrade(database_url) == head_revision()
    async with engine.connect() as connection:
        assert await connection.run_sync(read) == up
    await engine.dispose()
