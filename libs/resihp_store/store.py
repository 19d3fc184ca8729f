"""`Store`: the way in. Readers use `read()`, the scheduler's leader `transaction(token)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select

from resihp_store import tables as t
from resihp_store.engine import (
    IDLE_IN_TRANSACTION_S,
    database_errors,
    describe,
    parse_url,
    reader_engine,
    writer_engine,
)
from resihp_store.lease import Lease, fence
from resihp_store.queries import Connection
from resihp_store.records import OutgoingMessage
from resihp_store.revisions import check_revision
from resihp_store.unit_of_work import UnitOfWork

LEASE = "scheduler"


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Store:
    """A database at `url`. `outbox_filled` is set after every commit that put something into the outbox.

    Every method raises `StoreUnavailable` if the database does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        now: Callable[[], datetime] = _utc_now,
        busy_timeout_s: float = 5.0,
        idle_in_transaction_s: float = IDLE_IN_TRANSACTION_S,
    ) -> None:
        self.url = parse_url(url)
        self.outbox_filled = asyncio.Event()
        self._now = now
        self._writer = writer_engine(
            self.url, busy_timeout_s=busy_timeout_s, idle_in_transaction_s=idle_in_transaction_s
        )
        self._reader = reader_engine(self.url, busy_timeout_s=busy_timeout_s)

    def __str__(self) -> str:
        return describe(self.url)

    async def open(self) -> None:
        """Raises `SchemaBehind`, `SchemaAhead` or `StoreUnavailable`, each with one clear line."""
        await check_revision(str(self.url.render_as_string(hide_password=False)))

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._writer.dispose()
        await self._reader.dispose()

    async def ping(self) -> None:
        """Proves that the database answers."""
        async with self.read() as connection:
            await connection.execute(select(1))

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Connection]:
        """A connection for `queries`: one consistent view, never waits for the writer."""
        async with database_errors(self.url), self._reader.connect() as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self, token: int) -> AsyncIterator[UnitOfWork]:
        """Commits at the end of the block, rolls back if it raises. Raises `LeadershipLost` before anything is written
        if `token` is not the current fencing token."""
        async with database_errors(self.url), self._writer.begin() as connection:
            await fence(connection, name=LEASE, token=token)
            work = UnitOfWork(connection, token=token, now=self._now())
            yield work
        if work.sends:
            self.outbox_filled.set()

    def lease(self, *, holder: str, ttl_s: float, name: str = LEASE) -> Lease:
        return Lease(self._writer, name=name, holder=holder, ttl_s=ttl_s)

    async def unsent(self, limit: int) -> tuple[OutgoingMessage, ...]:
        """The oldest messages of the outbox that are not known to be published."""
        o = t.outbox.c
        query = select(o.id, o.message_id, o.job, o.kind, o.detail, o.payload).where(o.sent_at.is_(None))
        async with self.read() as connection:
            rows = await connection.execute(query.order_by(o.id).limit(limit))
            return tuple(OutgoingMessage(**dict(row._mapping)) for row in rows)

    async def prune(self, token: int, *, keep_s: float) -> None:
        """Forget sent messages and processed ids older than `keep_s` (longer than any stream redelivers)."""
        async with self.transaction(token) as work:
            before = work.now - timedelta(seconds=keep_s)
            await work.connection.execute(delete(t.outbox).where(t.outbox.c.sent_at < before))
            await work.connection.execute(delete(t.inbox).where(t.inbox.c.processed_at < before))
