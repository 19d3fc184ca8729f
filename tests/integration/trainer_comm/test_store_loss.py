"""The store dies or freezes: training goes on; only a construction needs it, and that can be left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.comm_fleet import Fleet

RANKS = (0, 1, 2)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, len(RANKS))
    yield fleet
    fleet.close()


def reduced(fleet: Fleet, epoch: int) -> None:
    order = {"do": "operate", "epoch": epoch, "group": "world", "op": "all_reduce"}
    assert fleet.values(RANKS, order) == [[6.0]] * 3


def test_killed_store(small: Fleet) -> None:
    epoch = small.build(RANKS)
    os.kill(small.store_pid, signal.SIGKILL)
    assert small.zygote.wait_exit(small.store_pid) == -signal.SIGKILL
    reduced(small, epoch)
    # A construction on the dead store ends by itself or by an abort; the running epoch is not touched by the former.
    order = small.build_order(RANKS)
    small.order(RANKS, order)
    small.abort(RANKS, order["epoch"])
    assert {r["outcome"] for r in small.replies(RANKS).values()} <= {"aborted", "failed"}
    small.store_pid, small.address = small.zygote.store()
    small.retire(RANKS, epoch)  # its keys went with its store
    small.retire(RANKS, small.build(RANKS))


def test_frozen_store(small: Fleet) -> None:
    epoch = small.build(RANKS)
    os.kill(small.store_pid, signal.SIGSTOP)
    reduced(small, epoch)
    order = small.build_order(RANKS)
    small.order(RANKS, order)
    small.abort(RANKS, order["epoch"])
    assert {r["outcome"] for r in small.replies(RANKS).values()} == {"aborted"}
    frozen, (small.store_pid, small.address) = small.store_pid, small.zygote.store()
    small.retire(RANKS, small.build(RANKS))
    os.kill(frozen, signal.SIGCONT)
    small.retire(RANKS, epoch)
