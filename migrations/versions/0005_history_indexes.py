"""Lists of history by time, and events by name, stay quick over a long past.

Revision: 0005.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels = None
depends_on = None

INDEXES = (
    ("incidents", ["job", "opened_at", "id"]),
    ("reconfigurations", ["job", "created_at", "id"]),
    ("events", ["name", "sequence"]),
)


def upgrade() -> None:
    for table, columns in INDEXES:
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)


def downgrade() -> None:
    for table, columns in reversed(INDEXES):
        op.drop_index(f"ix_{table}_{'_'.join(columns)}", table_name=table)
