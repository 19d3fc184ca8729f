"""URLs, and errors that name what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from resihp_store import BadDatabaseUrl, Store, StoreUnavailable
from resihp_store.engine import parse_url
from resihp_store.revisions import migrations_folder, upgrade


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("sqlite:///x.db", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:////abs/x.db", "sqlite+aiosqlite"),
        ("postgresql://u@h/d", "postgresql+asyncpg"),
        ("postgresql+asyncpg://u@h:5/d", "postgresql+asyncpg"),
    ],
)
def test_forms(text: str, driver: str) -> None:
    assert parse_url(text).drivername == driver


@pytest.mark.parametrize(
    "text", ["", "nonsense", "mysql://u@h/d", "postgresql+psycopg2://u@h/d", "sqlite://", "sqlite:///:memory:"]
)
def test_refused(text: str) -> None:
    with pytest.raises(BadDatabaseUrl) as caught:
        parse_url(text)
    assert "\n" not in str(caught.value)


def test_no_password_in_messages() -> None:
    store = Store("postgresql://u:secret@127.0.0.1:1/d")
    assert "secret" not in str(store)
    with pytest.raises(BadDatabaseUrl) as caught:
        parse_url("mysql://u:secret@h/d")
    assert "secret" not in str(caught.value)


async def test_unreachable_server() -> None:
    store = Store("postgresql://u:secret@127.0.0.1:1/d")  # nothing listens on port 1
    with pytest.raises(StoreUnavailable) as caught:
        await store.ping()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    await store.close()


async def test_unusable_file(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StoreUnavailable):
        await upgrade(f"sqlite:///{tmp_path / 'folder.db'}")
    (tmp_path / "text.db").write_text("not a database " * 100)
    store = Store(f"sqlite:///{tmp_path / 'text.db'}")
    with pytest.raises(StoreUnavailable):
        await store.ping()
    await store.close()


def test_migrations_are_found() -> None:
    assert (migrations_folder() / "versions").is_dir()
