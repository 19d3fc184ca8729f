"""Upgrades race, revisions are compared, and the tables are those of the code."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from resihp_store import SchemaAhead, SchemaBehind, Store
from resihp_store.engine import parse_url, writer_engine
from resihp_store.revisions import check_revision, current_revision, head_revision, upgrade
from resihp_store.tables import metadata


async def test_three_migrators_at_once(database_url: str) -> None:
    command = [sys.executable, "-m", "resihp_store.migrate", "--url", database_url]
    pipe = asyncio.subprocess.PIPE
    started = [await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe) for _ in range(3)]
    outputs = await asyncio.gather(*(p.communicate() for p in started))
    assert [p.returncode for p in started] == [0, 0, 0], outputs
    await check_revision(database_url)
    assert await upgrade(database_url) == head_revision()  # again: nothing to do


async def test_tables_equal_the_code(database_url: str) -> None:
    await upgrade(database_url)
    engine = writer_engine(parse_url(database_url))

    def compare(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    async with engine.begin() as connection:
        assert await connection.run_sync(compare) == []
    await engine.dispose()


async def test_behind(database_url: str) -> None:
    assert await current_revision(database_url) is None
    store = Store(database_url)
    with pytest.raises(SchemaBehind, match=r"run: python -m resihp_store.migrate") as caught:
        await store.open()
    assert "\n" not in str(caught.value)
    await store.close()


async def test_ahead_is_not_called_behind(database_url: str) -> None:
    await upgrade(database_url)
    engine = writer_engine(parse_url(database_url))
    async with engine.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await engine.dispose()
    with pytest.raises(SchemaAhead, match=r"ahead.*9999"):
        await check_revision(database_url)
    with pytest.raises(SchemaAhead):
        await upgrade(database_url)


async def test_the_program(database_url: str) -> None:
    environment = {**os.environ, "RESIHP_DATABASE_URL": database_url}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "resihp_store.migrate", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    before = await asyncio.to_thread(run, "--check")
    assert before.returncode == 2
    assert before.stderr.count("\n") == 1
    done = await asyncio.to_thread(run)
    assert (done.returncode, done.stderr) == (0, "")
    assert (await asyncio.to_thread(run, "--check")).returncode == 0
