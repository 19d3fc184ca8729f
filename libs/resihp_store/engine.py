"""Engines: one for writing, one for reading, with the settings that each database needs to be safe.

SQLite: WAL, `synchronous=FULL` (a command may be published for a commit, so a commit must survive power loss),
`BEGIN IMMEDIATE` for writers (a deferred read-then-write fails at once with "database is locked"), one writer
connection (writers queue in order here instead of polling the file lock). Readers begin plainly: they wait for nobody.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    NotSupportedError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from resihp_store.errors import BadDatabaseUrl, StoreUnavailable

IDLE_IN_TRANSACTION_S = 5.0
"""Far above the milliseconds that a transaction takes between two statements, even on a starved machine."""

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


def parse_url(text: str) -> URL:
    """`sqlite+aiosqlite:///path` or `postgresql+asyncpg://...` (driver optional). Raises `BadDatabaseUrl`."""
    forms = "give sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST:PORT/NAME"
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise BadDatabaseUrl(f"not a database URL: {_masked(text)!r}; {forms}") from error
    driver = DRIVERS.get(url.get_backend_name())
    if driver is None or ("+" in url.drivername and url.drivername != driver):
        raise BadDatabaseUrl(f"unsupported database URL {url.render_as_string()!r}; {forms}")
    if driver.startswith("sqlite") and (not url.database or url.database == ":memory:"):
        raise BadDatabaseUrl("the database must be a file: several processes share it")
    return url.set(drivername=driver)


def _masked(text: str) -> str:
    return re.sub(r"//[^@/]*@", "//***@", text)


def sqlite_path(url: URL) -> Path | None:
    """The database file, or None for PostgreSQL."""
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def _dumps(value: Any) -> str:
    """JSON has no word for NaN and infinities: they become null, so that a strange number never blocks a decision."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def writer_engine(
    url: URL, *, busy_timeout_s: float = 5.0, idle_in_transaction_s: float = IDLE_IN_TRANSACTION_S
) -> AsyncEngine:
    """Engine for transactions that write."""
    return _engine(
        url,
        begin="BEGIN IMMEDIATE",
        busy_timeout_s=busy_timeout_s,
        pool_size=1,
        idle_in_transaction_s=idle_in_transaction_s,
    )


def reader_engine(url: URL, *, busy_timeout_s: float = 5.0) -> AsyncEngine:
    """Engine for reads: never takes a write lock, so its transactions may idle."""
    return _engine(url, begin="BEGIN", busy_timeout_s=busy_timeout_s, pool_size=4, idle_in_transaction_s=0.0)


def _engine(
    url: URL, *, begin: str, busy_timeout_s: float, pool_size: int, idle_in_transaction_s: float
) -> AsyncEngine:
    try:
        if sqlite_path(url) is None:
            idle_ms = str(round(idle_in_transaction_s * 1000))
            return create_async_engine(
                url,
                json_serializer=_dumps,
                pool_size=4,
                pool_pre_ping=True,
                pool_timeout=busy_timeout_s,
                connect_args={
                    "timeout": busy_timeout_s,
                    "command_timeout": 30.0,
                    "server_settings": {"idle_in_transaction_session_timeout": idle_ms},
                },
            )
        engine = create_async_engine(
            url,
            json_serializer=_dumps,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=2 * busy_timeout_s,
            connect_args={"timeout": busy_timeout_s},
        )
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise BadDatabaseUrl(f"no driver for {url.drivername}: {error}; install resihp[postgres]") from error

    @event.listens_for(engine.sync_engine, "connect")
    def _prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions behind our back
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(busy_timeout_s * 1000)}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@asynccontextmanager
async def database_errors(url: URL) -> AsyncIterator[None]:
    """Turns the driver's and the pool's errors into `StoreUnavailable` with one clear line.

    Violated constraints and wrong statements are our own mistakes and pass through.
    """
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError, NotSupportedError):
        raise
    except DBAPIError as error:  # also what PostgreSQL says while it starts or stops, which has no class of its own
        raise StoreUnavailable(f"{describe(url)}: {one_line(error.orig)}") from error
    except _connect_errors(url) as error:
        raise StoreUnavailable(f"{describe(url)}: {one_line(error)}") from error


def _connect_errors(url: URL) -> tuple[type[Exception], ...]:
    """What the pool and the driver raise by themselves: no free connection, refused, unknown database, time-out."""
    if sqlite_path(url) is not None:
        return (PoolTimeout, OSError)
    import asyncpg

    return (PoolTimeout, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


def describe(url: URL) -> str:
    """The database in a message for people; without its password."""
    return f"database {url.render_as_string(hide_password=True)}"


def one_line(error: object) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__


def upsert_of(dialect: str) -> Any:
    """The dialect's `insert` with `on_conflict_do_*` (the two spell it alike, but in different modules)."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert
    from sqlalchemy.dialects.postgresql import insert as postgresql_insert

    return postgresql_insert
