"""Lists over all jobs by time, and a job's events by name, stay quick over a long past.

Revision: 0007.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision: str | None = "0006"
branch_labels = None
depends_on = None

INDEXES = (
    ("incidents", ["opened_at", "id"]),
    ("reconfigurations", ["created_at", "id"]),
    ("events", ["job", "name", "sequence"]),
)


def upgrade() -> None:
    for table, columns in INDEXES:
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)


def downgrade() -> None:
    for table, columns in reversed(INDEXES):
        op.drop_index(f"ix_{table}_{'_'.join(columns)}", table_name=table)
