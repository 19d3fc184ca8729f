"""Which ranks an incident concerned, in rows of their own: what concerned a device is found without reading the past.

Revision: 0009.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision: str | None = "0008"
branch_labels = None
depends_on = None

TABLE = "incident_ranks"
OF_INCIDENT = "ix_reconfigurations_incident_id"
EACH = {
    "sqlite": "SELECT DISTINCT i.id, e.value FROM incidents AS i, json_each(i.ranks) AS e",
    "postgresql": "SELECT DISTINCT i.id, e.value::integer FROM incidents AS i, jsonb_array_elements_text(i.ranks) AS e",
}


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("rank", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("incident_id", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("rank", "incident_id", name=f"pk_{TABLE}"),
        sa.ForeignKeyConstraint(["incident_id"], ["incidents.id"], name=f"fk_{TABLE}_incident_id_incidents"),
    )
    op.execute(f"INSERT INTO {TABLE} (incident_id, rank) {EACH[op.get_bind().dialect.name]}")
    op.create_index(OF_INCIDENT, "reconfigurations", ["incident_id"])


def downgrade() -> None:
    op.drop_index(OF_INCIDENT, table_name="reconfigurations")
    op.drop_table(TABLE)
