"""The store dies or freezes: training goes on; only a construction needs it, and that can be left."""

from __future__ import annotations

import os
import signal

from support.comm_fleet import Fleet


def assert_works(fleet: Fleet, epoch: int) -> None:
    order = {"do": "operate", "epoch": epoch, "group": "world", "op": "all_reduce"}
    assert fleet.values(fleet.ranks, order) == [[36.0]] * 8


def test_killed_store(fleet: Fleet) -> None:
    epoch = fleet.build(fleet.ranks)
    os.kill(fleet.store_pid, signal.SIGKILL)
    assert fleet.zygote.wait_exit(fleet.store_pid) == -signal.SIGKILL
    assert_works(fleet, epoch)
    # A construction on the dead store fails at once, without an abort.
    assert {r["outcome"] for r in fleet.do(fleet.ranks, fleet.build_order(fleet.ranks)).values()} == {"failed"}
    fleet.store_pid, fleet.address = fleet.zygote.store()
    fleet.retire(fleet.ranks, fleet.build(fleet.ranks))


def test_frozen_store(fleet: Fleet) -> None:
    epoch = fleet.build(fleet.ranks)
    os.kill(fleet.store_pid, signal.SIGSTOP)
    assert_works(fleet, epoch)
    order = fleet.build_order(fleet.ranks)
    fleet.order(fleet.ranks, order)
    fleet.abort(fleet.ranks, order["epoch"])
    assert {r["outcome"] for r in fleet.replies(fleet.ranks).values()} == {"aborted"}
    frozen, (fleet.store_pid, fleet.address) = fleet.store_pid, fleet.zygote.store()
    fleet.retire(fleet.ranks, fleet.build(fleet.ranks))
    os.kill(frozen, signal.SIGKILL)
    assert fleet.zygote.wait_exit(frozen) == -signal.SIGKILL
