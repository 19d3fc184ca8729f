"""Applies to every test: the marker of its folder, and the fixtures in `support` that several rooms use."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FOLDERS = ("unit", "contract", "integration", "chaos", "e2e")

# Modules of fixtures that several rooms share. A room's own fixtures live in a conftest.py of its folder.
pytest_plugins = [f"support.{name}" for name in ("nats", "postgres") if (TESTS / "support" / f"{name}.py").is_file()]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with its folder's name, so that `-m "not chaos"` works; a test in no such folder is an error."""
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in FOLDERS:
            raise pytest.UsageError(f"{item.path}: a test lives in one of tests/{{{','.join(FOLDERS)}}}/")
        item.add_marker(folder)
