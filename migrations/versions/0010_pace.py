"""By what a change's throughput was predicted, and the share of the devices' speed that its bound stands for.

Revision: 0010.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision: str | None = "0009"
branch_labels = None
depends_on = None

TABLE = "reconfigurations"


def upgrade() -> None:
    op.add_column(TABLE, sa.Column("predicted_by", sa.String(16), nullable=False, server_default=""))
    op.add_column(TABLE, sa.Column("speed_share", sa.Double))


def downgrade() -> None:
    op.drop_column(TABLE, "speed_share")
    op.drop_column(TABLE, "predicted_by")
