"""Operations, aborts and planned changes without faults: right results, nothing lost, nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from support.comm_fleet import Fleet, world_specs
from support.waiting import wait_for_blocking


def operate(fleet: Fleet, epoch: int, **fields: Any) -> dict[int, dict[str, Any]]:
    return fleet.do(fleet.ranks, {"do": "operate", "epoch": epoch, "group": "world", **fields})


def operate_on(fleet: Fleet, ranks: Sequence[int], epoch: int) -> dict[int, dict[str, Any]]:
    return fleet.do(ranks, {"do": "operate", "epoch": epoch, "group": "world", "op": "all_reduce"})


@pytest.fixture
def epoch(fleet: Fleet) -> Iterator[int]:
    """A healthy epoch of all ranks."""
    built = fleet.build(fleet.ranks)
    yield built
    fleet.retire(fleet.ranks, built)


def values(replies: dict[int, dict[str, Any]]) -> list[Any]:
    assert {r["outcome"] for r in replies.values()} == {"ok"}, replies
    return [reply["value"] for reply in replies.values()]


def test_reductions_and_transfers_give_the_right_numbers(fleet: Fleet, epoch: int) -> None:
    assert values(operate(fleet, epoch, op="all_reduce")) == [[36.0]] * 8
    assert values(operate(fleet, epoch, op="all_reduce", reduce="max", size=1000)) == [[8.0]] * 8
    assert values(operate(fleet, epoch, op="all_reduce", reduce="min")) == [[1.0]] * 8
    assert values(operate(fleet, epoch, op="broadcast", src=5, size=70_000)) == [[6.0]] * 8
    assert values(operate(fleet, epoch, op="all_gather", size=3)) == [[1.0, 2, 3, 4, 5, 6, 7, 8]] * 8


@pytest.mark.parametrize("modulus", [1, 4, 4099])
def test_all_to_all_delivers_uneven_and_empty_parts(fleet: Fleet, epoch: int, modulus: int) -> None:
    """`modulus` 1: nobody sends anything."""
    found = values(operate(fleet, epoch, op="all_to_all", modulus=modulus))
    for b in fleet.ranks:
        expected = [10.0 * a + b for a in fleet.ranks for _ in range((3 * a + b) % modulus)]
        assert found[b] == expected[:64]


def test_a_group_is_in_the_order_of_its_specification(fleet: Fleet) -> None:
    """Torch ranks follow the plan's order, not the numbers; other groups of some ranks do not disturb (B1)."""
    order = fleet.build_order(fleet.ranks)
    order["specs"] = [("extra", "tp", (5, 2)), ("world", "world", (7, 6, 5, 4, 3, 2, 1, 0)), ("solo", "tp", (3,))]
    built = fleet.values(fleet.ranks, order)
    assert built[5] == ["extra", "world"]
    assert built[3] == ["world", "solo"]
    gathered = values(operate(fleet, order["epoch"], op="all_gather"))
    assert gathered == [[8.0, 7, 6, 5, 4, 3, 2, 1]] * 8
    fleet.retire(fleet.ranks, order["epoch"])


def test_waits_are_counted_by_axis_and_the_page_ticks(fleet: Fleet, epoch: int) -> None:
    fleet.values(fleet.ranks, {"do": "waits"})
    ticks = fleet.workers[0].page.read().tick
    order = {"do": "operate", "epoch": epoch, "op": "all_reduce", "group": "tp/0-1"}
    fleet.order([0], order)
    # Rank 0 waits alone until its page has ticked a few slices.
    wait_for_blocking(lambda: fleet.workers[0].page.read().tick >= ticks + 3, what="ticks while waiting")
    fleet.order([1], order)
    fleet.replies([0, 1])
    tp_s, pp_s, dp_s = fleet.values([0], {"do": "waits"})[0]
    assert tp_s > 0.1
    assert pp_s == dp_s == 0.0


def test_a_retired_epoch_refuses_operations(fleet: Fleet) -> None:
    built = fleet.build(fleet.ranks)
    fleet.values(fleet.ranks, {"do": "retire", "epoch": built})
    assert {r["outcome"] for r in operate(fleet, built, op="all_reduce").values()} == {"refused"}
    fleet.values(fleet.ranks, {"do": "retire", "epoch": built})  # again: nothing happens
    fleet.values(fleet.ranks, {"do": "forget", "epoch": built})


def test_the_world_works_while_other_groups_are_built(fleet: Fleet) -> None:
    order = {**fleet.build_order(fleet.ranks), "do": "begin"}
    epoch = order["epoch"]
    order["specs"] = [("world", "world", fleet.ranks), ("tp/0-1", "tp", (0, 1)), ("tp/4-5", "tp", (4, 5))]
    fleet.order(fleet.ranks, order, r5={"specs": order["specs"][:2]})  # so rank 4 waits for rank 5 in vain
    assert values(fleet.replies(fleet.ranks)) == [["world"]] * 8
    assert values(operate(fleet, epoch, op="all_reduce")) == [[36.0]] * 8
    fleet.order([4], {"do": "complete", "epoch": epoch})
    assert fleet.values([0], {"do": "complete", "epoch": epoch}) == [["world", "tp/0-1"]]
    fleet.abort(fleet.ranks, epoch)
    assert fleet.replies([4])[4]["outcome"] == "aborted"
    left = [rank for rank in fleet.ranks if rank != 4]
    assert {r["outcome"] for r in operate_on(fleet, left, epoch).values()} == {"aborted"}

    order = {**fleet.build_order(fleet.ranks), "do": "begin"}
    fleet.values(fleet.ranks, order)
    fleet.values(fleet.ranks, {"do": "complete", "epoch": order["epoch"]})
    assert values(operate(fleet, order["epoch"], op="all_reduce")) == [[36.0]] * 8
    fleet.retire(fleet.ranks, order["epoch"])


def test_an_epoch_cannot_be_built_twice(fleet: Fleet, epoch: int) -> None:
    order = {"do": "build", "epoch": epoch, "specs": world_specs(fleet.ranks), "address": fleet.address}
    assert {r["outcome"] for r in fleet.do(fleet.ranks, order).values()} == {"refused"}
    assert values(operate(fleet, epoch, op="all_reduce")) == [[36.0]] * 8


def test_a_late_abort_of_an_older_epoch_is_ignored(fleet: Fleet, epoch: int) -> None:
    fleet.abort(fleet.ranks, epoch - 1)
    assert values(operate(fleet, epoch, op="all_reduce")) == [[36.0]] * 8
    assert {r["outcome"] for r in fleet.do(fleet.ranks, {"do": "check", "epoch": epoch}).values()} == {"ok"}
    assert {r["outcome"] for r in fleet.do(fleet.ranks, {"do": "check", "epoch": epoch - 1}).values()} == {"aborted"}


def test_an_abort_before_its_epoch_is_built_is_not_lost(fleet: Fleet) -> None:
    order = fleet.build_order(fleet.ranks)
    fleet.abort(fleet.ranks, order["epoch"])
    assert {r["outcome"] for r in fleet.do(fleet.ranks, order).values()} <= {"aborted"}
    fleet.retire(fleet.ranks, fleet.build(fleet.ranks))


def test_aborting_again_and_again_disturbs_no_newer_epoch(fleet: Fleet) -> None:
    for _ in range(3):
        old = fleet.build(fleet.ranks)
        fleet.order(fleet.ranks[1:], {"do": "operate", "epoch": old, "group": "world", "op": "all_reduce"})
        for _ in range(3):
            fleet.abort(fleet.ranks, old)
        left = fleet.replies(fleet.ranks[1:])
        assert {r["outcome"] for r in left.values()} <= {"aborted", "failed"}, left
        order = fleet.build_order(fleet.ranks)
        fleet.order(fleet.ranks, order)
        for _ in range(5):  # while the new epoch is under construction
            fleet.abort(fleet.ranks, old)
        built = fleet.replies(fleet.ranks)
        assert {r["outcome"] for r in built.values()} == {"ok"}, built
        assert values(operate(fleet, order["epoch"], op="all_reduce")) == [[36.0]] * 8
        fleet.retire(fleet.ranks, order["epoch"])


def test_an_abort_at_any_moment_of_a_construction_reaches_everybody(fleet: Fleet) -> None:
    """The abort follows the first k ranks' start; the later ranks find it already there."""
    for k in range(1, 9):
        order = fleet.build_order(fleet.ranks)
        fleet.order(fleet.ranks[:k], order)
        fleet.abort(fleet.ranks, order["epoch"])
        fleet.order(fleet.ranks[k:], order)
        replies = fleet.replies(fleet.ranks)
        assert {r["outcome"] for r in replies.values()} <= {"aborted", "failed", "ok"}, replies
        assert all(replies[r]["outcome"] == "aborted" for r in fleet.ranks[k:])
        if k == 8:
            built = [r for r in fleet.ranks if replies[r]["outcome"] == "ok"]
            fleet.do(built, {"do": "check", "epoch": order["epoch"]})
    fleet.retire(fleet.ranks, fleet.build(fleet.ranks))


def test_thirty_planned_changes_leave_nothing_behind(fleet: Fleet) -> None:
    """The old epoch is retired after the first collective of the new one, as in a real planned change."""

    def counts() -> list[dict[str, Any]]:
        def settled() -> list[dict[str, Any]]:
            found = fleet.values(fleet.ranks, {"do": "counts"})
            return found if all(not [t for t in f["python_threads"] if "-e" in t] for f in found) else []

        return wait_for_blocking(settled, what="reapers done")

    old = fleet.build(fleet.ranks)
    for _ in range(3):  # lazily created things settle
        new = fleet.build(fleet.ranks)
        fleet.retire(fleet.ranks, old)
        old = new
    before, keys = counts(), fleet.values([0], {"do": "store_keys", "address": fleet.address})
    for _ in range(30):
        new = fleet.build(fleet.ranks)
        fleet.retire(fleet.ranks, old)
        old = new
    after = counts()
    for a, b in zip(before, after, strict=True):
        assert a["threads"] == b["threads"]
        assert a["descriptors"] == b["descriptors"]
        assert b["rss_bytes"] < 1.05 * a["rss_bytes"]
    assert fleet.values([0], {"do": "store_keys", "address": fleet.address}) == keys
    fleet.retire(fleet.ranks, old)
