"""Virtual links: what a transfer counts as, and how long a slow one holds its receiver up."""

from __future__ import annotations

import pytest

from resihp_messages import ClockConfig, ScriptedFault
from resihp_plan import ModelSpec
from resihp_trainer.faults import Faults
from resihp_trainer.links import LinkSpeeds, VirtualLinks

MIB = 1 << 20


class Mark:
    def mark_fault(self) -> None:
        raise AssertionError("a slow link is not for an agent to notice")


def links_of(rank: int, slept: list[float]) -> tuple[LinkSpeeds, VirtualLinks]:
    speeds = LinkSpeeds()
    links = VirtualLinks.of(ClockConfig(virtual=True), speeds, ModelSpec(), rank, slept.append)
    assert links is not None
    return speeds, links


def test_a_healthy_transfer_is_counted_and_holds_nobody_up() -> None:
    slept: list[float] = []
    _, links = links_of(2, slept)
    links.arrived(0, MIB, forward=True)
    links.arrived(0, MIB, forward=True)
    first = links.take()
    assert first == {"edge/0>2/f": pytest.approx(2 * (links.latency_s + MIB / links.bytes_per_s))}
    assert links.take() == {}
    assert slept == []


def test_a_slow_link_holds_its_receiver_up_in_slices_and_both_directions_are_one_edge() -> None:
    slept: list[float] = []
    speeds, links = links_of(0, slept)
    speeds.set_speed(2, 0.01)
    links.arrived(2, MIB, forward=False)  # a gradient comes back
    links.arrived(1, MIB, forward=False)
    healthy_s = links.latency_s + MIB / links.bytes_per_s
    taken = links.take()
    assert taken == {"edge/0>2/f": pytest.approx(100 * healthy_s), "edge/0>1/f": pytest.approx(healthy_s)}
    assert sum(slept) == pytest.approx(99 * healthy_s)
    assert max(slept) <= 0.02


def test_on_the_real_clock_nobody_knows_when_the_sender_began() -> None:
    assert VirtualLinks.of(ClockConfig(), LinkSpeeds(), ModelSpec(), 0, lambda s: None) is None


@pytest.mark.parametrize(("rank", "peer"), [(0, 2), (2, 0), (1, None)])
def test_a_scripted_slow_link_strikes_at_both_ends_and_nowhere_else(rank: int, peer: int | None) -> None:
    fault = ScriptedFault(kind="slow_link", rank=0, peer=2, factor=0.25, iteration=3)
    speeds = LinkSpeeds()
    faults = Faults((fault,), rank, Mark(), None, speeds)
    for iteration in range(1, 5):
        faults.strike(fault.point, iteration)
    assert [speeds.p(r) for r in range(4)] == [0.25 if r == peer else 1.0 for r in range(4)]


def test_a_peer_belongs_to_a_slow_link_alone() -> None:
    for wrong in ({"kind": "slow", "peer": 2}, {"kind": "slow_link"}, {"kind": "slow_link", "peer": 0}):
        with pytest.raises(ValueError, match="faults: "):
            ScriptedFault.model_validate({"rank": 0, "iteration": 1, **wrong})
