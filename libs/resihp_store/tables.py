"""Tables. Core `Table` objects: statements are written where they are used, rows leave this room as `records`.

Times of day are UTC (`UtcDateTime`); durations are seconds (`_s`). A change here needs a revision in `migrations/`
(a contract test compares both on SQLite and PostgreSQL).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC datetimes on both databases (SQLite forgets the zone)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError(f"naive datetime {value!r}: times in the database are UTC")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_Json = JSON().with_variant(JSONB(), "postgresql")
_Big = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers rows by itself only for INTEGER keys


def _name(key: str, **kw: Any) -> Column[str]:
    return Column(key, String(64), **kw)


def _job(**kw: Any) -> Column[str]:
    return Column("job", String(64), ForeignKey("jobs.job"), **kw)


jobs = Table(
    "jobs",
    metadata,
    _name("job", primary_key=True),
    Column("number", Integer, nullable=False, unique=True),  # order of submission
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False, default=""),
    Column("spec", _Json, nullable=False),
    Column("committed", BigInteger, nullable=False, default=0),
    Column("samples_expected", BigInteger),
    Column("samples_once", BigInteger),
    Column("final_loss", Double),
    Column("submitted_at", UtcDateTime, nullable=False),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
)

nodes = Table(
    "nodes",
    metadata,
    _name("node", primary_key=True),
    _name("incarnation", nullable=False),
    Column("host", Text, nullable=False),
    Column("comm_host", Text, nullable=False),
    Column("num_slots", Integer, nullable=False),
    Column("store_address", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("joined_at", UtcDateTime, nullable=False),
    Column("changed_at", UtcDateTime, nullable=False),
)

devices = Table(
    "devices",
    metadata,
    _job(primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    _name("node", nullable=False),
    Column("slot", Integer, nullable=False),
    _name("incarnation", nullable=False),  # of the node's agent when the slot was dealt
    Column("state", String(16), nullable=False),
    Column("pid", BigInteger),
    Column("result", _Json),  # the worker's last word, see records.DeviceRecord
    Column("changed_at", UtcDateTime, nullable=False),
    Column("start", Integer, nullable=False, default=0, server_default="0"),
    Column("p", Double, nullable=False, default=1.0, server_default="1.0"),  # as the scheduler plans with it
    Index(None, "node"),
)

plans = Table(
    "plans",
    metadata,
    _job(primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),
    Column("plan", _Json, nullable=False),
    Column("predicted_tokens_per_s", Double),
    Column("created_at", UtcDateTime, nullable=False),
    Column("installed_at", UtcDateTime),  # every rank of its world holds its verified shards
)

incidents = Table(
    "incidents",
    metadata,
    _name("id", primary_key=True),
    _job(nullable=False, index=True),
    Column("kind", String(32), nullable=False),
    Column("ranks", _Json, nullable=False),
    _name("node", nullable=False),
    Column("evidence", _Json, nullable=False),
    Column("verdict", _Json, nullable=False),
    Column("advice", Text, nullable=False),
    Column("resolution", Text, nullable=False, default=""),
    Column("correlation_id", Text, nullable=False),
    Column("message_id", String(64), nullable=False, unique=True),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    Index(None, "job", "opened_at", "id"),
    Index(None, "opened_at", "id"),
    Index(None, "job", "closed_at"),  # the open ones, and those that ended lately
)

incident_ranks = Table(  # the same ranks again, to be found by
    "incident_ranks",
    metadata,
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("incident_id", String(64), ForeignKey("incidents.id"), primary_key=True),
)

reconfigurations = Table(
    "reconfigurations",
    metadata,
    _name("id", primary_key=True),
    _job(nullable=False),
    Column("incident_id", String(64), ForeignKey("incidents.id")),
    Column("mode", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempt", Integer, nullable=False, default=1),
    Column("old_epoch", BigInteger, nullable=False),
    Column("new_epoch", BigInteger, nullable=False),
    Column("old_digest", String(64), nullable=False),
    Column("new_digest", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("difference", Text, nullable=False),
    Column("alternatives", _Json, nullable=False),
    Column("phases_s", _Json, nullable=False),
    Column("proof", _Json, nullable=False),
    Column("bytes_moved", BigInteger),
    Column("bound_tokens_per_s", Double),
    Column("predicted_tokens_per_s", Double),
    Column("achieved_tokens_per_s", Double),
    Column("correlation_id", Text, nullable=False),
    Column("outcome", Text, nullable=False, default=""),  # why it was rejected, or by what superseded
    Column("created_at", UtcDateTime, nullable=False),
    Column("applied_at", UtcDateTime),
    Column("closed_at", UtcDateTime),
    Column("lost_iterations", Integer, nullable=False, default=0, server_default="0"),
    Column("state_source", String(16), nullable=False, default="live", server_default="live"),
    Column("predicted_by", String(16), nullable=False, default="", server_default=""),
    Column("speed_share", Double),
    Index(None, "incident_id"),
    Index(None, "job", "new_epoch", unique=True),
    Index(None, "job", "created_at", "id"),
    Index(None, "created_at", "id"),
)

decisions = Table(
    "decisions",
    metadata,
    _name("id", primary_key=True),
    _job(nullable=False),
    Column("incident_id", String(64), ForeignKey("incidents.id")),
    Column("reconfiguration_id", String(64), ForeignKey("reconfigurations.id")),
    Column("trigger", Text, nullable=False),
    Column("question", _Json, nullable=False),  # speeds and plan that were weighed
    _name("key", nullable=False),  # of the question
    Column("action", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("difference", Text, nullable=False),
    Column("plan", _Json),
    Column("alternatives", _Json, nullable=False),
    Column("predicted_tokens_per_s", Double),
    Column("stay_tokens_per_s", Double),
    Column("bound_tokens_per_s", Double),
    Column("planning_s", Double, nullable=False),
    Column("again_at", UtcDateTime),
    Column("note", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    Index(None, "job", "created_at"),
)

controls = Table(
    "controls",
    metadata,
    _job(primary_key=True),
    Column("mode", String(16), nullable=False),
    Column("is_held", Boolean, nullable=False),
    Column("held_until", UtcDateTime),  # None while held: until it is lifted
    Column("breaker", Text, nullable=False),  # why it tripped; empty: it did not
    Column("calibration", _Json),
    Column("evicted", _Json),  # ranks that are not to be used
    Column("thresholds", _Json),  # name -> value of those that differ from their defaults
)

acks = Table(
    "acks",
    metadata,
    Column("reconfiguration_id", String(64), ForeignKey("reconfigurations.id"), primary_key=True),
    _name("node", primary_key=True),
    Column("name", String(32), primary_key=True),
    Column("body", _Json, nullable=False),
)

iterations = Table(
    "iterations",
    metadata,
    _job(primary_key=True),
    Column("iteration", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("loss", Double),
    Column("step_s", Double, nullable=False),  # slowest rank
    Column("tokens", BigInteger, nullable=False),
    Column("samples_expected", BigInteger, nullable=False),
    Column("samples_once", BigInteger, nullable=False),
    Column("rss_bytes", BigInteger),  # largest rank
)

events = Table(
    "events",
    metadata,
    Column("sequence", _Big, primary_key=True),
    Column("message_id", String(64), nullable=False, unique=True),
    _name("job", nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("name", String(64), nullable=False),
    Column("source", String(64), nullable=False),
    Column("correlation_id", Text, nullable=False),
    Column("occurred_at", UtcDateTime, nullable=False),
    Column("body", _Json, nullable=False),
    Index(None, "job", "sequence"),
    Index(None, "name", "sequence"),
    Index(None, "job", "name", "sequence"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _Big, primary_key=True),
    Column("message_id", String(64), nullable=False, unique=True),
    _name("job", nullable=False),
    Column("kind", String(16), nullable=False),
    _name("detail", nullable=False),
    Column("payload", LargeBinary, nullable=False),  # the encoded envelope
    Column("created_at", UtcDateTime, nullable=False),
    Column("sent_at", UtcDateTime),
    Index(
        "ix_outbox_unsent",
        "id",
        sqlite_where=text("sent_at IS NULL"),
        postgresql_where=text("sent_at IS NULL"),
    ),
)

inbox = Table(
    "inbox",
    metadata,
    Column("message_id", String(64), primary_key=True),
    Column("reply", LargeBinary),  # the encoded answer of a request, given again when it is asked again
    Column("processed_at", UtcDateTime, nullable=False, index=True),
)

cursors = Table(
    "cursors",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)

leader = Table(
    "leader",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(64), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),  # seconds since 1970 on the database's clock
)
