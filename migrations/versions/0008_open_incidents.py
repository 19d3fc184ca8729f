"""A job's open incidents, and those that ended lately, are found without reading all of its past.

Revision: 0008.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision: str | None = "0007"
branch_labels = None
depends_on = None

NAME = "ix_incidents_job_closed_at"


def upgrade() -> None:
    op.create_index(NAME, "incidents", ["job", "closed_at"])


def downgrade() -> None:
    op.drop_index(NAME, table_name="incidents")
