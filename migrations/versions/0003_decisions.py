"""Decisions that can wait, what the scheduler may do on its own, and the speed of devices.

Revision: 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision: str | None = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    with op.batch_alter_table("devices") as batch_op:
        batch_op.add_column(sa.Column("p", sa.Double(), nullable=False, server_default="1.0"))
    op.create_table(
        "controls",
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("is_held", sa.Boolean(), nullable=False),
        sa.Column("held_until", TIME, nullable=True),
        sa.Column("breaker", sa.Text(), nullable=False),
        sa.Column("calibration", JSON, nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_controls_job_jobs")),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_controls")),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("incident_id", sa.String(64), nullable=True),
        sa.Column("reconfiguration_id", sa.String(64), nullable=True),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("question", JSON, nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("difference", sa.Text(), nullable=False),
        sa.Column("plan", JSON, nullable=True),
        sa.Column("alternatives", JSON, nullable=False),
        sa.Column("predicted_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("stay_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("bound_tokens_per_s", sa.Double(), nullable=True),
        sa.Column("planning_s", sa.Double(), nullable=False),
        sa.Column("again_at", TIME, nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("closed_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.job"], name=op.f("fk_decisions_job_jobs")),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=op.f("fk_decisions_incident_id_incidents")),
        sa.ForeignKeyConstraint(
            ["reconfiguration_id"],
            ["reconfigurations.id"],
            name=op.f("fk_decisions_reconfiguration_id_reconfigurations"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
    )
    op.create_index(op.f("ix_decisions_job_created_at"), "decisions", ["job", "created_at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_decisions_job_created_at"), "decisions")
    op.drop_table("decisions")
    op.drop_table("controls")
    with op.batch_alter_table("devices") as batch_op:
        batch_op.drop_column("p")
