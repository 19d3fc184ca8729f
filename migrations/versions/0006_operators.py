"""Evicted devices and changed thresholds of a job.

Revision: 0006.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision: str | None = "0005"
branch_labels = None
depends_on = None

COLUMNS = ("evicted", "thresholds")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("controls", sa.Column(name, sa.JSON().with_variant(JSONB(), "postgresql")))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("controls", name)
