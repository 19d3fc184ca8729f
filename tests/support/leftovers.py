"""Nothing that a test starts may outlive the session: all processes inherit a mark, which is looked for at the end."""

from __future__ import annotations

import os
import uuid

import psutil

from support.waiting import wait_for_blocking

MARK = "RESIHP_TEST_SESSION"


def mark_this_session() -> str:
    """Mark this process's environment, so that all its descendants carry it, also those that get another parent.

    A worker of pytest-xdist keeps the mark of who started it.
    """
    mark = os.environ.get(MARK) if "PYTEST_XDIST_WORKER" in os.environ else None
    mark = mark or uuid.uuid4().hex
    os.environ[MARK] = mark
    return mark


def leftovers(mark: str, *, patience_s: float = 5.0) -> list[str]:
    """Command lines of processes with the mark that still run after `patience_s`, other than this process."""
    try:
        wait_for_blocking(lambda: not _marked(mark), patience_s, every_s=0.1)
    except TimeoutError:
        return _marked(mark)
    return []


def _marked(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK) == mark:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            continue  # gone, or not ours to read
    return found
