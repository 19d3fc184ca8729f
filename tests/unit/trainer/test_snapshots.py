"""Rounds of snapshots on groups of threads, and the way back from them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from resihp_plan import ParallelPlan, groups, guardians, layout
from resihp_trainer.catalogue import Catalogue, Copies, StateGone, choose, exchange
from resihp_trainer.copies import collect, copy_bytes, fill, is_intact, parts_of, shards_in
from resihp_trainer.join import Applied
from resihp_trainer.moves import Moved, move_state
from resihp_trainer.snapshots import MAX_OPEN, Snapshot, Snapshots
from support.thread_groups import ThreadGroup, run_ranks
from support.trainer_cases import HEALTHY, SPEC, replica, stage
from support.trainer_state import PLANS, assert_known, values

STEP = Applied(6, 1, 400, 90, 2.5, 800.0)
GUARDS = guardians(HEALTHY)
HELD = layout(HEALTHY, SPEC)
SURVIVORS = (0, 1, 4, 5)
"""Nobody that holds layers 2 and 3."""


def snapshots_of(rank: int) -> Snapshots:
    return Snapshots(rank, torch.float64, ThreadPoolExecutor(1), lambda: None)


def take(rank: int, found: Mapping[str, ThreadGroup]) -> Snapshots:
    """One complete round."""
    mine = snapshots_of(rank)
    mine.enter(HELD, GUARDS, found)
    live = values(HELD, rank)
    mine.begin(live, STEP)
    while mine.report(8) != 1:
        assert mine.is_busy
    for shard in live.shards.values():  # training goes on
        shard.parameter.add_(1.0)
    mine.conclude(8, 8)
    return mine


def round_of_all() -> dict[int, Snapshots]:
    return run_ranks(groups(HEALTHY, SPEC, GUARDS), take)


def catalogue(mine: Snapshots, reached: int = 8) -> Catalogue:
    copies = (Copies(s.layout.plan, s.applied, tuple(s.copies), False) for s in mine.kept.values())
    return Catalogue(reached, tuple(copies))


def test_everybody_keeps_its_own_shards_and_those_of_its_wards() -> None:
    for rank, mine in round_of_all().items():
        (key,) = mine.kept
        assert key == (6, 1)
        snapshot = mine.kept[key]
        assert snapshot.is_complete
        assert not mine.is_busy
        assert set(snapshot.shards) == {rank, *(ward for ward, guardian in GUARDS.items() if guardian == rank)}
        for held in snapshot.shards.values():
            assert_known(held)


@pytest.mark.parametrize("plan", PLANS[1:])
def test_the_state_comes_back_in_any_layout(plan: ParallelPlan) -> None:
    taken = round_of_all()
    left = ParallelPlan(9, plan.replicas, standby=plan.standby)  # on all ranks: four of them are new processes
    target = layout(left, SPEC)

    def back(rank: int, found: Mapping[str, ThreadGroup]) -> Moved:
        world = found["world"]
        mine = taken[rank] if rank in SURVIVORS else snapshots_of(rank)
        all_of_them = exchange(world, catalogue(mine, 8 if rank in SURVIVORS else 0), rank)
        chosen = choose(all_of_them, target, SPEC, None, what="lost")
        assert (chosen.iteration, chosen.lost, chosen.source, chosen.applied) == (6, 2, "snapshot", STEP)
        assert chosen.moves is not None
        source = collect(s for snapshot in mine.kept.values() for s in snapshot.shards.values())
        return move_state(source, target, chosen.moves, world, rank, torch.float64, lambda: None)

    for moved in run_ranks(groups(left, SPEC), back).values():
        assert moved.is_verified
        assert_known(moved.held)


def test_a_round_that_ends_early_leaves_what_was_copied() -> None:
    mine = snapshots_of(0)
    mine.enter(HELD, GUARDS, {})
    mine.begin(values(HELD, 0), STEP)
    mine.rest()
    assert not mine.is_busy
    assert set(mine.kept[6, 1].copies) == {0}
    assert not mine.kept[6, 1].is_complete


def test_the_newest_complete_one_stays_whatever_comes() -> None:
    mine = round_of_all()[0]
    for epoch in range(2, 9):
        held = layout(HEALTHY.with_epoch(epoch), SPEC)
        mine.enter(held, GUARDS, {})
        mine.begin(values(held, 0), Applied(6 + epoch, epoch, 1, 1, 1.0, 1.0))
        mine.rest()
    assert len(mine.kept) == 1 + MAX_OPEN
    assert set(mine.kept) == {(6, 1), (13, 7), (14, 8)}
    mine.forget_after(13)
    assert set(mine.kept) == {(6, 1), (13, 7)}


def test_a_spoilt_copy_ends_the_round_for_all() -> None:
    mine = snapshots_of(0)
    mine.enter(HELD, {}, {})
    mine.begin(values(HELD, 0), STEP)
    assert mine.report(8) == 1
    mine.conclude(8 + 9, 8)  # somebody reported a failure
    assert not mine.is_busy
    assert not mine.kept


def test_a_copy_that_is_not_what_was_fingerprinted_ends_the_round_for_all() -> None:
    for is_same, reported in ((True, 1), (False, 9)):
        mine = snapshots_of(0)
        mine.enter(HELD, {}, {})
        mine.begin(values(HELD, 0), STEP)
        mine.check(STEP.iteration - 1, lambda copy: False)  # of another iteration
        mine.check(STEP.iteration, lambda copy, is_same=is_same: assert_known(copy) is None and is_same)
        assert mine.report(8) == reported


@pytest.mark.parametrize("lend", [False, True])
def test_the_memory_of_a_dropped_snapshot_is_used_again_unless_it_is_lent(lend: bool) -> None:
    mine = snapshots_of(0)
    mine.enter(HELD, {}, {})
    places = []
    for n in range(3):
        mine.begin(values(HELD, 0), Applied(6 + n, 1, 1, 1, 1.0, 1.0), lend=lend)
        assert mine.report(1) == 1
        places.append(mine.kept[6 + n, 1].copies[0].data_ptr())
        lent = list(mine.kept.values()) if lend else []
        mine.conclude(1, 1)
        assert_known(mine.kept[6 + n, 1].shards[0])
        assert all(snapshot.copies for snapshot in lent)
    assert list(mine.kept) == [(8, 1)]
    assert (places[2] == places[0]) == (not lend)


def test_what_a_fingerprint_may_send_us_back_to_stays() -> None:
    mine = snapshots_of(0)
    mine.enter(HELD, {}, {})
    kept = {}
    for iteration in range(1, 13):
        if iteration in (1, 5, 10):
            mine.fingerprinted(iteration)
        if iteration % 2:
            mine.begin(values(HELD, 0), Applied(iteration, 1, 1, 1, 1.0, 1.0))
            assert mine.report(1) == 1
            mine.conclude(1, 1)
        kept[iteration] = sorted(key[0] for key in mine.kept)
    # 5 may show that replicas differ: then 1, where they agreed, must be there; 10 sends us back to 5
    assert kept[4] == [1, 3]
    assert kept[6] == [1, 5]
    assert kept[9] == [1, 5, 9]
    assert kept[10] == [5, 9]
    assert kept[12] == [5, 9, 11]
    mine.forget_after(7)  # they went back to 5
    assert sorted(key[0] for key in mine.kept) == [5]


def test_only_what_is_old_enough_counts_if_there_is_any() -> None:
    def copies(iteration: int, *, live: bool = False) -> Copies:
        return Copies(HEALTHY, Applied(iteration, 1, 1, 1, 1.0, 1.0), tuple(range(8)), live)

    told = {0: Catalogue(12, (copies(5), copies(9), copies(12, live=True)), (4, 8))}
    for newest, iteration, source in (
        (9, 9, "snapshot"),
        (8, 8, "checkpoint"),
        (7, 5, "snapshot"),
        (4, 4, "checkpoint"),
    ):
        found = choose(told, HELD, SPEC, None, what="replicas differ", newest=newest)
        assert (found.iteration, found.source, found.lost) == (iteration, source, 12 - iteration)
    found = choose(told, HELD, SPEC, None, what="replicas differ", newest=3)
    assert (found.iteration, found.source, found.lost) == (12, "live", 0)  # nothing is: the job goes on as it is


def test_a_changed_byte_is_noticed() -> None:
    buffer = torch.empty(copy_bytes(HELD, 3, torch.float64), dtype=torch.uint8)
    fill(buffer, parts_of(values(HELD, 3)))
    assert is_intact(buffer)
    assert_known(shards_in(buffer, HELD, 3, torch.float64))
    buffer[len(buffer) // 2] ^= 1
    assert not is_intact(buffer)
    other = torch.empty(copy_bytes(HELD, 2, torch.float64), dtype=torch.uint8)
    fill(other, parts_of(values(HELD, 2)))
    snapshot = Snapshot(HELD, STEP, torch.float64, {3: buffer, 2: other})
    snapshot.drop_spoilt()
    assert set(snapshot.copies) == {2}


def test_slices_are_put_together_from_several_shards() -> None:
    both = collect([values(HELD, 2), values(HELD, 3)])
    assert both is not None
    whole = values(layout(ParallelPlan(5, (replica(6, stage(0, 4, [9])),)), SPEC), 9)
    for name in HELD.shards(2):
        expected = whole.shards[name].state
        stop = HELD.tensors[name].shape[HELD.tensors[name].dim]
        for part, all_of_it in zip(both.slices(name, 0, stop), expected, strict=True):
            assert torch.equal(part, all_of_it)


def test_nothing_complete_is_said_clearly() -> None:
    part = Copies(HEALTHY, STEP, (0,), False)
    damaged = Catalogue(8, (part,), (), ((3, "it3/rank0.safetensors: missing"),))
    with pytest.raises(
        StateGone, match=r"lost; no complete snapshot.*slices of iteration 6.*rank0.safetensors: missing"
    ):
        choose({0: damaged}, HELD, SPEC, None, what="lost")


def test_the_newest_state_wins_wherever_it_is() -> None:
    complete = Copies(HEALTHY, STEP, HEALTHY.active, False)
    for checkpoints, source, iteration in (((3,), "snapshot", 6), ((6,), "snapshot", 6), ((3, 7), "checkpoint", 7)):
        found = choose({0: Catalogue(8, (complete,), checkpoints)}, HELD, SPEC, None, what="lost")
        assert (found.source, found.iteration, found.lost) == (source, iteration, 8 - iteration)


def test_a_checkpoint_counts_if_all_can_read_it_and_nobody_found_it_damaged() -> None:
    both = {0: Catalogue(8, (), (3, 5, 7, 90)), 1: Catalogue(8, (), (3, 5), ((5, "it5: bad"),))}
    assert choose(both, HELD, SPEC, None, what="lost").iteration == 3
    ahead = {0: Catalogue(8, (), (3, 90))}
    assert choose(ahead, HELD, SPEC, None, what="lost").iteration == 3  # 90 is of another run
    assert choose(ahead, HELD, SPEC, None, what="resume", resume=True).iteration == 90
    with pytest.raises(StateGone, match="it5: bad; remove its folder"):
        choose(both, HELD, SPEC, None, what="resume", resume=True)


def test_catalogues_keep_everything() -> None:
    full = Catalogue(8, (Copies(HEALTHY, STEP, (0, 3), True),), (3, 5), ((7, "why"),))
    assert Catalogue.unpack(full.pack()) == full
