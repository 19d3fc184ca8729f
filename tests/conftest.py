"""Applies to every test: the marker of its folder, the fixtures in `support` that rooms share, no leftover process."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.leftovers import leftovers, mark_this_session

TESTS = Path(__file__).parent
FOLDERS = ("unit", "contract", "integration", "chaos", "e2e")
ONE_AT_A_TIME = ("integration", "chaos", "e2e")
"""Folders whose tests start many processes: with `-n 2` (pytest-xdist) one worker runs them all, in order, and the
other one the rest, so that two jobs never share the machine."""

# Fixtures that several rooms use. A room's own fixtures live in a conftest.py of its folder.
pytest_plugins = ["support.nats", "support.postgres"]

_MARK = pytest.StashKey[str]()


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_MARK] = mark_this_session()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that outlives the session fails it: what the tests leave behind, the product would leave behind."""
    if hasattr(session.config, "workerinput"):
        return  # a worker of pytest-xdist: who started it looks, after all have ended
    remaining = leftovers(session.config.stash[_MARK])
    if remaining:
        print("\n\nprocesses left behind by the tests:", *remaining, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test with its folder's name, so that `-m "not chaos"` works; a test in no such folder is an error."""
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in FOLDERS:
            raise pytest.UsageError(f"{item.path}: a test lives in one of tests/{{{','.join(FOLDERS)}}}/")
        item.add_marker(folder)
        if folder in ONE_AT_A_TIME:
            item.add_marker(pytest.mark.xdist_group("processes"))
