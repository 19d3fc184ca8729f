"""Jobs, nodes, devices, plans, incidents, reconfigurations; log, outbox, inbox, cursors, leader.

Revision: 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

UNSENT = sa.text("sent_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "cursors",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cursors")),
    )
    op.create_table(
        "events",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("message_id", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=64), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_events")),
        sa.UniqueConstraint("message_id", name=op.f("uq_events_message_id")),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_job_sequence"), ["job", "sequence"], unique=False)

    op.create_table(
        "inbox",
        sa.Column("message_id", sa.String(length=64), nullable=False),
        sa.Column("reply", sa.LargeBinary(), nullable=True),
        sa.Column("processed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("message_id", name=op.f("pk_inbox")),
    )
    with op.batch_alter_table("inbox", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_inbox_processed_at"), ["processed_at"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("committed", sa.BigInteger(), nullable=False),
        sa.Column("samples_expected", sa.BigInteger(), nullable=True),
        sa.Column("samples_once", sa.BigInteger(), nullable=True),
        sa.Column("final_loss", sa.Double(), nullable=True),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_jobs")),
        sa.UniqueConstraint("number", name=op.f("uq_jobs_number")),
    )
    op.create_table(
        "leader",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leader")),
    )
    op.create_table(
        "nodes",
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("incarnation", sa.String(length=64), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("comm_host", sa.Text(), nullable=False),
        sa.Column("num_slots", sa.Integer(), nullable=False),
        sa.Column("store_address", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("joined_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_nodes")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("message_id", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.String(length=64), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("message_id", name=op.f("uq_outbox_message_id")),
    )
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.create_index(
            "ix_outbox_unsent",
            ["id"],
            unique=False,
            sqlite_where=sa.text("sent_at IS NULL"),
            postgresql_where=sa.text("sent_at IS NULL"),
        )

    op.create_table(
        "devices",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("result", JSON, nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_devices_job_jobs")),
        sa.PrimaryKeyConstraint("job", "rank", name=op.f("pk_devices")),
    )
    with op.batch_alter_table("devices", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_devices_node"), ["node"], unique=False)

    op.create_table(
        "incidents",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("ranks", JSON, nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("evidence", JSON, nullable=False),
        sa.Column("verdict", JSON, nullable=False),
        sa.Column("advice", sa.Text(), nullable=False),
        sa.Column("resolution", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("message_id", sa.String(length=64), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_incidents_job_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
        sa.UniqueConstraint("message_id", name=op.f("uq_incidents_message_id")),
    )
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_incidents_job"), ["job"], unique=False)

    op.create_table(
        "iterations",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("iteration", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("step_s", sa.Double(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("samples_expected", sa.BigInteger(), nullable=False),
        sa.Column("samples_once", sa.BigInteger(), nullable=False),
        sa.Column("rss_bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_iterations_job_jobs")),
        sa.PrimaryKeyConstraint("job", "iteration", name=op.f("pk_iterations")),
    )
    op.create_table(
        "plans",
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("plan", JSON, nullable=False),
        sa.Column("predicted_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("installed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_plans_job_jobs")),
        sa.PrimaryKeyConstraint("job", "epoch", name=op.f("pk_plans")),
    )
    op.create_table(
        "reconfigurations",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=64), nullable=False),
        sa.Column("incident_id", sa.String(length=64), nullable=True),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("old_epoch", sa.BigInteger(), nullable=False),
        sa.Column("new_epoch", sa.BigInteger(), nullable=False),
        sa.Column("old_digest", sa.String(length=64), nullable=False),
        sa.Column("new_digest", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("difference", sa.Text(), nullable=False),
        sa.Column("alternatives", JSON, nullable=False),
        sa.Column("phases_s", JSON, nullable=False),
        sa.Column("proof", JSON, nullable=False),
        sa.Column("bytes_moved", sa.BigInteger(), nullable=True),
        sa.Column("bound_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("predicted_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("achieved_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("applied_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.id"], name=op.f("fk_reconfigurations_incident_id_incidents")
        ),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_reconfigurations_job_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reconfigurations")),
    )
    with op.batch_alter_table("reconfigurations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_reconfigurations_job_new_epoch"), ["job", "new_epoch"], unique=True)

    op.create_table(
        "acks",
        sa.Column("reconfiguration_id", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["reconfiguration_id"], ["reconfigurations.id"], name=op.f("fk_acks_reconfiguration_id_reconfigurations")
        ),
        sa.PrimaryKeyConstraint("reconfiguration_id", "node", "name", name=op.f("pk_acks")),
    )


def downgrade() -> None:
    op.drop_table("acks")
    with op.batch_alter_table("reconfigurations", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_reconfigurations_job_new_epoch"))

    op.drop_table("reconfigurations")
    op.drop_table("plans")
    op.drop_table("iterations")
    with op.batch_alter_table("incidents", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_incidents_job"))

    op.drop_table("incidents")
    with op.batch_alter_table("devices", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_devices_node"))

    op.drop_table("devices")
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.drop_index("ix_outbox_unsent", sqlite_where=UNSENT, postgresql_where=UNSENT)

    op.drop_table("outbox")
    op.drop_table("nodes")
    op.drop_table("leader")
    op.drop_table("jobs")
    with op.batch_alter_table("inbox", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_inbox_processed_at"))

    op.drop_table("inbox")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_events_job_sequence"))

    op.drop_table("events")
    op.drop_table("cursors")
