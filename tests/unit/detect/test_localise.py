"""Probes to verdicts, and what is probed."""

from __future__ import annotations

import math

import pytest

from resihp_detect.localise import locate
from resihp_plan import ParallelPlan, ReplicaPlan
from resihp_plan.probing import probing
from support.plans import demo_plan, stage


def test_several_slow_devices_are_named_with_the_speed_of_the_slowest() -> None:
    found = locate({0: 1.0, 1: 1.25, 2: 1.02, 3: 4.0, 4: 0.99, 5: 1.01}, {(0, 1): (9.0,), (2, 3): (1.0,)})
    assert (found.devices, found.links) == ((1, 3), ())  # slow devices explain slow transfers
    assert found.p == pytest.approx(1.01 / 4.0, rel=0.02)


def test_equal_devices_and_links_are_nobodys_fault() -> None:
    found = locate({r: 1.0 + 0.02 * r for r in range(6)}, {(0, 1): (1.3, 1.0), (1, 2): (1.2, 7.0), (2, 3): (1.1,)})
    assert (found.devices, found.links, found.p) == ((), (), 1.0)


def test_unusable_times_are_left_out_and_one_device_alone_says_nothing() -> None:
    assert locate({0: 0.0, 1: math.nan, 2: 5.0}, {(0, 1): ()}).devices == ()
    assert locate({}, {}).p == 1.0


def test_suspects_are_probed_with_their_peers_and_edges() -> None:
    chosen = probing(demo_plan(), [5])
    assert chosen.links == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert set(chosen.ranks) == set(range(8))
    assert probing(demo_plan()) == chosen
    with pytest.raises(ValueError, match=r"ranks \[9\]"):
        probing(demo_plan(), [9])


def test_a_standby_suspect_is_probed_alone_with_the_others_idle() -> None:
    plan = ParallelPlan(1, (ReplicaPlan((stage(0, 8, 0, 1),), 8),), standby=(2,))
    assert probing(plan, [2]).ranks == (2,)
    assert probing(plan).ranks == (0, 1, 2)
