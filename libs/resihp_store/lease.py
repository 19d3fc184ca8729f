"""Leadership: one row with an expiry on the database's clock and a fencing token that grows with every new holder.

Every state-changing transaction first touches the row with its token (`fence`): that takes the row's lock, so that a
take-over waits for it, and finds no row if somebody else took over, so that a zombie writes nothing.
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from resihp_store.engine import database_errors
from resihp_store.errors import LeadershipLost

NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    # now() would be the start of the transaction, which may have waited for the row's lock.
    "postgresql": "cast(extract(epoch from clock_timestamp()) as double precision)",
}
"""Seconds since 1970 on the database's clock, as an SQL expression."""


class Lease:
    """One contender for one lease. `holder` must be fresh per process start, or a restart inherits the old token."""

    def __init__(self, engine: AsyncEngine, *, name: str, holder: str, ttl_s: float) -> None:
        self.name = name
        self.holder = holder
        self.ttl_s = ttl_s
        self._engine = engine
        now = NOW[engine.dialect.name]
        self._insert = text(
            "INSERT INTO leader (name, holder, token, expires_at) VALUES (:name, '', 0, 0) ON CONFLICT DO NOTHING"
        )
        self._take = text(
            "UPDATE leader SET holder = :holder, "
            f"expires_at = {now} + :ttl_s, "
            "token = CASE WHEN holder = :holder THEN token ELSE token + 1 END "
            f"WHERE name = :name AND (expires_at < {now} OR holder = :holder) RETURNING token"
        )
        self._release = text("UPDATE leader SET expires_at = 0 WHERE name = :name AND holder = :holder")

    async def acquire(self) -> int | None:
        """Take or renew the lease: its token, or None while somebody else holds it. Raises `StoreUnavailable`."""
        values = {"name": self.name, "holder": self.holder, "ttl_s": self.ttl_s}
        async with database_errors(self._engine.url), self._engine.begin() as connection:
            await connection.execute(self._insert, {"name": self.name})
            token = (await connection.execute(self._take, values)).scalar_one_or_none()
        return None if token is None else int(token)

    async def release(self) -> None:
        """Let the next contender in at once; harmless for a former holder."""
        async with database_errors(self._engine.url), self._engine.begin() as connection:
            await connection.execute(self._release, {"name": self.name, "holder": self.holder})


async def fence(connection: AsyncConnection, *, name: str, token: int) -> None:
    """Lock the lease row for this transaction. Raises `LeadershipLost` if `token` is not the current one."""
    statement = text("UPDATE leader SET token = token WHERE name = :name AND token = :token")
    result = await connection.execute(statement, {"name": name, "token": token})
    if result.rowcount != 1:
        raise LeadershipLost(f"the lease {name!r} has a newer holder than token {token}")
