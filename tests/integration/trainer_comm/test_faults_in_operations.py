"""A rank is killed or frozen inside each kind of operation: all others leave it and work on, in the same processes."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest

from support.comm_fleet import HANG_S, Fleet

VICTIMS = pytest.mark.parametrize("victim", [0, 3, 7], ids=["first", "middle", "last"])
FAULTS = pytest.mark.parametrize("fault", ["kill", "freeze"])
OPERATIONS = {
    "vote, part missing": ({"op": "all_reduce", "size": 12}, "before"),
    "vote, part sent": ({"op": "all_reduce", "size": 12}, "after"),
    "large all_reduce": ({"op": "all_reduce", "size": 1 << 18}, "after"),
    "all_gather": ({"op": "all_gather", "size": 64}, "before"),
    "all_to_all": ({"op": "all_to_all", "modulus": 40_000}, "after"),
    "several at once": ({"op": "all_reduce", "size": 4096, "times": 5}, "after"),
}


def assert_left(fleet: Fleet, survivors: list[int]) -> None:
    """Every survivor has left its operation, soon after the abort or by an error before it."""
    for reply in fleet.replies(survivors).values():
        assert reply["outcome"] in ("aborted", "failed"), reply
        assert reply.get("left_after_s", 0.0) < HANG_S / 4


def assert_works_on(fleet: Fleet, victim: int, fault: str) -> None:
    """A new epoch of the survivors works, in the same processes; a frozen victim is fenced only afterwards."""
    survivors = [r for r in fleet.ranks if r != victim]
    before = [fleet.workers[r].pid for r in survivors]
    epoch = fleet.build(survivors)
    fleet.bury(victim, fault)
    reduced = fleet.do(survivors, {"do": "operate", "epoch": epoch, "group": "world", "op": "all_reduce"})
    assert [reduced[r]["pid"] for r in survivors] == before
    assert {reduced[r]["value"][0] for r in survivors} == {float(sum(r + 1 for r in survivors))}
    fleet.retire(survivors, epoch)


@VICTIMS
@FAULTS
@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_world_operation(fleet: Fleet, operation: str, fault: str, victim: int) -> None:
    epoch = fleet.build(fleet.ranks)
    survivors = [r for r in fleet.ranks if r != victim]
    what, at = OPERATIONS[operation]
    order: dict[str, Any] = {"do": "operate", "epoch": epoch, "group": "world", **what}
    fleet.order(fleet.ranks, order, **{f"r{victim}": {"strike": fault, "at": at}})
    fleet.await_fault(victim, fault)
    if at == "after":  # what the victim had begun may or may not be complete; the next vote cannot be
        fleet.order(survivors, {**order, "op": "all_reduce"})
    fleet.abort(survivors, epoch)
    if at == "after":
        first = fleet.replies(survivors)
        assert {r["outcome"] for r in first.values()} <= {"ok", "aborted", "failed"}, first
        second = fleet.replies(survivors)
        for rank in survivors:  # `refused`: the rank had left the epoch already
            expected = ("aborted", "failed") if first[rank]["outcome"] == "ok" else ("refused",)
            assert second[rank]["outcome"] in expected, (first[rank], second[rank])
    else:
        assert_left(fleet, survivors)
    assert_works_on(fleet, victim, fault)


@VICTIMS
@FAULTS
def test_pipeline_edge(fleet: Fleet, fault: str, victim: int) -> None:
    """The neighbour waits for the victim on a pipeline edge, everybody else waits for the neighbour in the world."""
    epoch = fleet.build(fleet.ranks)
    survivors = [r for r in fleet.ranks if r != victim]
    source, destination = (victim, victim + 2) if victim < 6 else (victim - 2, victim)
    neighbour = destination if victim == source else source
    edge = {"group": f"edge/{source}>{destination}", "op": "broadcast", "src": source, "size": 1 << 21}
    fleet.order(
        fleet.ranks,
        {"do": "operate", "epoch": epoch, "group": "world", "op": "all_reduce"},
        **{f"r{neighbour}": edge, f"r{victim}": {**edge, "strike": fault, "at": "before"}},
    )
    fleet.await_fault(victim, fault)
    fleet.abort(survivors, epoch)
    assert_left(fleet, survivors)
    assert_works_on(fleet, victim, fault)


@VICTIMS
@FAULTS
@pytest.mark.parametrize(("at", "times"), [("set", 1), ("wait", 1), ("wait", 5), ("set", 3)])
def test_construction(fleet: Fleet, at: str, times: int, fault: str, victim: int) -> None:
    """Before the victim published its address; after it, with or without connections; and in a later group."""
    survivors = [r for r in fleet.ranks if r != victim]
    order = fleet.build_order(fleet.ranks)
    fleet.order(fleet.ranks, order, **{f"r{victim}": {"strike": fault, "at": at, "times": times}})
    fleet.await_fault(victim, fault)
    # The world is built first, so everybody needs the victim; with `set` 3 it died after the world was complete.
    fleet.order(survivors, {"do": "operate", "epoch": order["epoch"], "group": "world", "op": "all_reduce"})
    fleet.abort(survivors, order["epoch"])
    built = fleet.replies(survivors)
    then = fleet.replies(survivors)
    for rank in survivors:
        if built[rank]["outcome"] == "ok":
            assert then[rank]["outcome"] in ("aborted", "failed"), then[rank]
        else:
            assert built[rank]["outcome"] in ("aborted", "failed"), built[rank]
            assert built[rank].get("left_after_s", 0.0) < HANG_S / 4
    assert_works_on(fleet, victim, fault)


@pytest.mark.parametrize("seed", range(12))
def test_training_like_iterations(fleet: Fleet, seed: int) -> None:
    """Groups of all kinds at once; one or two victims at arbitrary operations; everybody else may be anywhere."""
    chance = random.Random(seed)
    epoch = fleet.build(fleet.ranks)
    victims = chance.sample(fleet.ranks, 1 + seed % 2)
    faults = {victim: chance.choice(["kill", "freeze"]) for victim in victims}
    survivors = [r for r in fleet.ranks if r not in faults]
    order = {"do": "train", "epoch": epoch}
    fleet.order(
        fleet.ranks,
        order,
        **{f"r{v}": {"strike": faults[v], "at_operation": chance.randint(1, 40)} for v in victims[:1]},
    )
    fleet.await_fault(victims[0], faults[victims[0]])
    for second in victims[1:]:  # while the others are blocked, before anybody is told
        worker = fleet.workers[second]
        os.kill(worker.pid, signal.SIGKILL if faults[second] == "kill" else signal.SIGSTOP)
        fleet.await_fault(second, faults[second])
    fleet.abort(survivors, epoch)
    assert_left(fleet, survivors)
    epoch = fleet.build(survivors)
    for victim, fault in faults.items():
        fleet.bury(victim, fault)
    reduced = fleet.values(survivors, {"do": "operate", "epoch": epoch, "group": "world", "op": "all_reduce"})
    assert reduced == [[float(sum(r + 1 for r in survivors))]] * len(survivors)
    fleet.retire(survivors, epoch)


def test_a_rank_that_never_comes(fleet: Fleet) -> None:
    """Everybody but one builds: they sit in the store until the abort."""
    absent, survivors = fleet.ranks[4], [r for r in fleet.ranks if r != 4]
    order = fleet.build_order(fleet.ranks)
    fleet.order(survivors, order)
    fleet.abort(survivors, order["epoch"])
    assert {r["outcome"] for r in fleet.replies(survivors).values()} == {"aborted"}
    fleet.retire(fleet.ranks, fleet.build(fleet.ranks))
    assert absent in fleet.ranks
