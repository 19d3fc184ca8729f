"""Which aborts concern the epoch that a worker is in, whatever the order of the news."""

from __future__ import annotations

from typing import Literal

import pytest

from resihp_messages.link import AbortEpoch, FinishNow, InstallPlan, StopNow
from resihp_trainer.watcher import Watcher


class Aborts:
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def abort(self, epoch: int) -> None:
        self.epochs.append(epoch)


def dead(*ranks: int, at_s: float = 1.0, starts: tuple[int, ...] = ()) -> AbortEpoch:
    return AbortEpoch(dead_ranks=ranks, starts=starts, noticed_s=at_s, reason="exited")


def broken(epoch: int, at_s: float = 1.0) -> AbortEpoch:
    return AbortEpoch(dead_ranks=(), epoch=epoch, noticed_s=at_s, reason="link")


def plan(epoch: int, mode: Literal["initial", "recovery", "planned"]) -> InstallPlan:
    return InstallPlan(
        mode=mode, epoch=epoch, reconfiguration_id="r", plan={}, digest="0" * 64, store_address="127.0.0.1:1"
    )


@pytest.fixture
def aborts() -> Aborts:
    return Aborts()


@pytest.fixture
def watcher(aborts: Aborts) -> Watcher:
    watcher = Watcher()
    watcher.attach(aborts)
    return watcher


def test_a_dead_member_aborts_the_entered_epoch(watcher: Watcher, aborts: Aborts) -> None:
    watcher.enter(4, (0, 1, 2, 3))
    assert aborts.epochs == []
    watcher.on_frame(dead(3, at_s=12.5))
    assert aborts.epochs == [4]
    assert watcher.noticed_s(4) == 12.5
    assert watcher.dead == {3: 0}


def test_a_death_concerns_that_start_of_the_rank_and_those_before(watcher: Watcher, aborts: Aborts) -> None:
    watcher.on_frame(dead(3))
    watcher.enter(4, (0, 3), {3: 1})
    assert aborts.epochs == []  # its replacement lives
    watcher.on_frame(dead(3))  # old news, again
    assert aborts.epochs == []
    watcher.on_frame(dead(3, at_s=2.5, starts=(1,)))
    assert aborts.epochs == [4]
    assert watcher.noticed_s(4) == 2.5
    watcher.on_frame(dead(3))  # old news does not bring it back to life
    assert watcher.dead == {3: 1}
    watcher.enter(5, (0, 3), {3: 1})
    assert aborts.epochs[-1] == 5
    watcher.enter(6, (0, 3), {3: 2})
    assert aborts.epochs[-1] == 5


def test_a_death_outside_the_world_aborts_nothing(watcher: Watcher, aborts: Aborts) -> None:
    watcher.enter(4, (0, 1, 2))
    watcher.on_frame(dead(3))
    assert aborts.epochs == []
    assert watcher.noticed_s(4) is None


def test_a_death_known_before_entering_aborts_at_once(watcher: Watcher, aborts: Aborts) -> None:
    watcher.on_frame(dead(3, at_s=2.0))
    watcher.enter(5, (0, 1, 3))  # planned before the death was known
    assert aborts.epochs == [5]
    assert watcher.noticed_s(5) == 2.0
    watcher.enter(6, (0, 1))
    assert aborts.epochs == [5]


def test_the_first_notice_counts(watcher: Watcher, aborts: Aborts) -> None:
    watcher.enter(1, (0, 1, 2))
    watcher.on_frame(dead(1, at_s=3.0))
    watcher.on_frame(dead(1, 2, at_s=4.0))
    assert set(aborts.epochs) == {1}
    assert watcher.noticed_s(1) == 3.0


def test_a_broken_link_aborts_its_epoch_only(watcher: Watcher, aborts: Aborts) -> None:
    watcher.enter(7, (0, 1))
    watcher.on_frame(broken(6))
    assert aborts.epochs == []
    watcher.on_frame(broken(7, at_s=9.0))
    assert aborts.epochs == [7]
    assert watcher.noticed_s(7) == 9.0
    watcher.enter(8, (0, 1))
    assert aborts.epochs == [7]


def test_news_before_the_first_epoch_wait_for_it(aborts: Aborts) -> None:
    watcher = Watcher()
    watcher.on_frame(dead(2))
    watcher.attach(aborts)
    watcher.enter(1, (0, 1, 2))
    assert aborts.epochs == [1]


def test_orders_keep_their_order_and_aborts_are_not_among_them(watcher: Watcher) -> None:
    watcher.on_frame(FinishNow())
    watcher.on_frame(dead(1))
    watcher.on_frame(StopNow(reason="x"))
    assert watcher.next_order(0.0) == FinishNow()
    assert watcher.next_order(0.0) == StopNow(reason="x")
    assert watcher.next_order(0.0) is None
    assert watcher.next_order(0.01) is None


@pytest.mark.parametrize("order", [plan(5, "recovery"), plan(5, "initial"), FinishNow(), StopNow()])
def test_an_order_that_replaces_the_epoch_frees_a_blocked_rank(
    watcher: Watcher, aborts: Aborts, order: InstallPlan | FinishNow | StopNow
) -> None:
    watcher.enter(4, (0, 1))
    assert aborts.epochs == []
    watcher.on_frame(order)
    assert aborts.epochs == [4]
    assert watcher.noticed_s(4) is None  # no fault
    assert watcher.next_order(0.0) == order


@pytest.mark.parametrize("order", [plan(5, "recovery"), FinishNow(), StopNow()])
def test_an_order_between_reading_a_plan_and_entering_it_is_not_lost(
    watcher: Watcher, aborts: Aborts, order: InstallPlan | FinishNow | StopNow
) -> None:
    watcher.on_frame(plan(4, "recovery"))
    assert watcher.next_order(0.0) == plan(4, "recovery")
    watcher.on_frame(order)
    assert aborts.epochs == []
    watcher.enter(4, (0, 1))
    assert aborts.epochs == [4]


@pytest.mark.parametrize("order", [plan(5, "planned"), plan(4, "recovery"), plan(3, "recovery")])
def test_other_plans_leave_the_epoch_alone(watcher: Watcher, aborts: Aborts, order: InstallPlan) -> None:
    watcher.enter(4, (0, 1))
    watcher.on_frame(order)
    assert aborts.epochs == []
    assert watcher.next_order(0.0) == order
