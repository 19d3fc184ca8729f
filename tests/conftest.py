"""Applies to every test: the marker of its folder, the fixtures in `support` that rooms share, no leftover process."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from support.leftovers import leftovers, mark_this_session

TESTS = Path(__file__).parent
FOLDERS = ("unit", "contract", "integration", "chaos", "e2e")
ONE_AT_A_TIME = ("integration", "chaos", "e2e")
"""Folders whose tests start many processes: with `-n 2` (pytest-xdist) one worker runs them all, in order, and the
other one the rest, so that two jobs never share the machine."""

RERUNS = 1
"""`make test` runs a failed test with real servers or processes (all but `unit`) once more: a virtual machine that
stands still for a second lets real programs meet in orders that nobody wrote down. The first failure is printed in
full and is a defect to mend; a run has three such chances at most (`--max-suite-reruns`). Plain pytest and `make
soak` have none."""

# Fixtures that several rooms use. A room's own fixtures live in a conftest.py of its folder.
pytest_plugins = ["support.nats", "support.postgres"]

_MARK = pytest.StashKey[str]()


def pytest_sessionstart(session: pytest.Session) -> None:
    # A shell's background job ignores Ctrl-C, and so would every process that it starts; tests press it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    session.config.stash[_MARK] = mark_this_session()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that outlives the session fails it: what the tests leave behind, the product would leave behind."""
    if hasattr(session.config, "workerinput"):
        return  # a worker of pytest-xdist: who started it looks, after all have ended
    remaining = leftovers(session.config.stash[_MARK])
    if remaining:
        print("\n\nprocesses left behind by the tests:", *remaining, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks each test with its folder's name, so that `-m "not chaos"` works; a test in no such folder is an error."""
    for item in items:
        if not item.path.is_relative_to(TESTS):
            continue
        folder = item.path.relative_to(TESTS).parts[0]
        if folder not in FOLDERS:
            raise pytest.UsageError(f"{item.path}: a test lives in one of tests/{{{','.join(FOLDERS)}}}/")
        item.add_marker(folder)
        if folder != "unit" and config.getoption("max_suite_reruns") is not None:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two streams: see `ONE_AT_A_TIME`. Files of the other folders stay whole, for their module fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class Streams(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.split("/")[1]
            return "processes" if folder in ONE_AT_A_TIME else nodeid.split("::")[0]

    return Streams(config, log)
