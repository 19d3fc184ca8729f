"""Changes that gave up iterations: how many, and where the state came from.

Revision: 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("reconfigurations") as batch_op:
        batch_op.add_column(sa.Column("lost_iterations", sa.Integer(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("state_source", sa.String(16), nullable=False, server_default="live"))


def downgrade() -> None:
    with op.batch_alter_table("reconfigurations") as batch_op:
        batch_op.drop_column("state_source")
        batch_op.drop_column("lost_iterations")
