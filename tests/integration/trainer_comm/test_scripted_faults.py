"""A scripted fault is a real signal to the process itself, stamped in its page just before."""

from __future__ import annotations

import os
import signal
import time

from support.waiting import wait_for_blocking
from support.zygote_client import ZygoteClient


def test_kill(zygote: ZygoteClient) -> None:
    before_s = time.monotonic()
    worker = zygote.spawn(3)  # the program scripts: kill rank 3 at (vote, 2)
    worker.link.sendall(b"pass")
    assert zygote.wait_exit(worker.pid) == -signal.SIGKILL
    assert worker.link.recv(100) == b"vote 1;gradient 1;"
    assert before_s < worker.page.read().fault_at_s < time.monotonic()


def test_freeze_strikes_once(zygote: ZygoteClient) -> None:
    worker = zygote.spawn(4)  # freeze rank 4 at (gradient, 1)
    worker.link.settimeout(10.0)
    worker.link.sendall(b"pass")
    wait_for_blocking(lambda: worker.state() == "T", what="stopped")
    assert worker.page.read().fault_at_s > 0.0
    os.kill(worker.pid, signal.SIGCONT)  # it goes on, and the redone iteration is spared
    assert zygote.wait_exit(worker.pid) == 0
    assert worker.link.recv(100) == b"vote 1;gradient 1;vote 2;gradient 2;"


def test_other_ranks_are_spared(zygote: ZygoteClient) -> None:
    worker = zygote.spawn(5)
    worker.link.sendall(b"pass")
    assert zygote.wait_exit(worker.pid) == 0
    assert worker.page.read().fault_at_s == 0.0
