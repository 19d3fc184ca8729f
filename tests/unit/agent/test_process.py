"""Questions to the kernel."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from resihp_agent import process
from support.waiting import wait_for_blocking


def test_never_the_group_of_everybody() -> None:
    for pgid in (-1, 0, 1):
        with pytest.raises(ValueError, match="not a worker's process group"):
            process.kill_group(pgid)


def test_a_group_dies_with_its_children() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"], process_group=0)
    wait_for_blocking(lambda: len(process.group_members(shell.pid)) == 3)
    fd = process.open_pidfd(shell.pid)
    assert fd is not None
    os.close(fd)
    assert process.kill_group(shell.pid)
    assert shell.wait() == -signal.SIGKILL
    wait_for_blocking(lambda: not process.group_members(shell.pid))
    assert process.open_pidfd(shell.pid) is None
    assert not process.send_signal(shell.pid, signal.SIGKILL)
    assert process.state_letter(shell.pid) == ""


def test_stopped_processes_are_told_from_sleeping_ones() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        wait_for_blocking(lambda: process.state_letter(sleeper.pid) == "S")
        process.send_signal(sleeper.pid, signal.SIGSTOP)
        wait_for_blocking(lambda: process.is_stopped(process.state_letter(sleeper.pid)))
    finally:
        sleeper.kill()
        sleeper.wait()
