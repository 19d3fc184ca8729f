"""Run by Alembic. The connection comes from `resihp_store.migrate`, which holds the lock and owns the transaction."""

from __future__ import annotations

from alembic import context

from resihp_store.tables import UtcDateTime, metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run migrations by: python -m resihp_store.migrate --url URL")


def render_item(kind: str, value: object, _: object) -> str | bool:
    """Revisions must not import our code: our type is written as what it stores."""
    if kind == "type" and isinstance(value, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
    render_item=render_item,
)
with context.begin_transaction():
    context.run_migrations()
