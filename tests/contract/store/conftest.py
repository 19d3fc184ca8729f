"""Every test of this folder runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from resihp_store import Store
from resihp_store.revisions import upgrade


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'resihp.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """A store at the head revision."""
    await upgrade(database_url)
    opened = Store(database_url)
    await opened.open()
    yield opened
    await opened.close()
