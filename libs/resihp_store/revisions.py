"""Schema revisions: find the migrations, upgrade under a lock, check before use.

Several processes may upgrade at once: one does it, the others wait and find it done.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, text

from resihp_store.engine import database_errors, describe, parse_url, reader_engine, sqlite_path, writer_engine
from resihp_store.errors import SchemaAhead, SchemaBehind, StoreUnavailable

_LOCK_KEY = 7_361_204_115
"""Any constant: names the advisory lock of migrations in a PostgreSQL database."""


def migrations_folder() -> Path:
    """Inside the wheel, or at the root of the source tree."""
    here = Path(__file__).resolve().parent
    for folder in (here / "_migrations", here.parent.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise FileNotFoundError(f"no migrations beside {here}: the installation is incomplete")


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration; `migrations/env.py` uses the given connection and no other."""
    made = Config()
    made.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    made.attributes["connection"] = connection
    return made


def head_revision() -> str:
    """The revision that this program was built for."""
    head = ScriptDirectory.from_config(config()).get_current_head()
    if head is None:
        raise FileNotFoundError(f"no revisions in {migrations_folder()}")
    return head


async def current_revision(url: str) -> str | None:
    """The database's revision; None for an empty one. Raises `StoreUnavailable`; never creates a SQLite file."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is not None and not path.exists():
        return None
    engine = reader_engine(parsed)
    try:
        async with database_errors(parsed), engine.connect() as connection:
            return await connection.run_sync(lambda c: MigrationContext.configure(c).get_current_revision())
    finally:
        await engine.dispose()


async def check_revision(url: str) -> None:
    """Raises `SchemaBehind` or `SchemaAhead` with one clear line, or `StoreUnavailable`."""
    _compare(parse_url(url), await current_revision(url))


def _compare(url: URL, revision: str | None) -> None:
    scripts = ScriptDirectory.from_config(config())
    known = {script.revision for script in scripts.walk_revisions()}
    head = head_revision()
    if revision == head:
        return
    shown = url.render_as_string(hide_password=True)
    if revision is not None and revision not in known:
        raise SchemaAhead(
            f"{describe(url)} is ahead: revision {revision} is newer than this program ({head}); update it"
        )
    raise SchemaBehind(
        f"{describe(url)} is behind: revision {revision or 'none'}, wanted {head}; "
        f"run: python -m resihp_store.migrate --url {shown}"
    )


async def upgrade(url: str, *, lock_timeout_s: float = 60.0) -> str:
    """Bring the database to the head revision, whatever runs beside us; returns the revision.

    Alembic's context is global to the process: do not upgrade two databases at once in one process.
    Raises `SchemaAhead`, `StoreUnavailable`.
    """
    parsed = parse_url(url)
    engine = writer_engine(parsed, busy_timeout_s=lock_timeout_s)
    try:
        async with _file_lock(parsed), database_errors(parsed), engine.begin() as connection:
            if parsed.get_backend_name() == "postgresql":
                await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
            await connection.run_sync(_upgrade, parsed)
    finally:
        await engine.dispose()
    return head_revision()


def _upgrade(connection: Connection, url: URL) -> None:
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision == head_revision():
        return
    try:
        _compare(url, revision)
    except SchemaBehind:
        command.upgrade(config(connection), "head")


@asynccontextmanager
async def _file_lock(url: URL) -> AsyncIterator[None]:
    """SQLite cannot switch an empty file to WAL under contention, so upgraders queue before they connect."""
    path = sqlite_path(url)
    if path is None:
        yield
        return
    lock = path.with_name(path.name + ".migrate-lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreUnavailable(f"{describe(url)}: cannot create {lock}: {error.strerror}") from error
    try:
        await asyncio.to_thread(fcntl.flock, descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # releases the lock
