"""The guard at the end of a test session sees processes that got another parent, and lets finished ones pass."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from support.leftovers import leftovers, mark_this_session
from support.waiting import wait_for_blocking

# Starts a grandchild that waits for the end of its input, tells its pid, and ends: the grandchild gets another parent.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=0, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
"""


def test_an_orphan_is_found_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIHP_TEST_SESSION", "restored after this test")
    mark = mark_this_session()
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        assert parent.wait(10) == 0
        found = leftovers(mark, patience_s=0.1)
        assert [int(line.split()[0]) for line in found] == [orphan]
        parent.stdin.close()
    wait_for_blocking(lambda: not psutil.pid_exists(orphan), 10)
    assert leftovers(mark) == []
