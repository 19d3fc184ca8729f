"""Changes in words."""

from __future__ import annotations

import dataclasses

import pytest

from resihp_plan import ParallelPlan, ReplicaPlan, describe_change, describe_plan
from support.plans import demo_plan, stage

OLD = demo_plan()
R0, R1 = OLD.replicas

CASES = [
    (OLD.with_epoch(5), "same layout"),
    (
        ParallelPlan(2, (dataclasses.replace(R0, num_micro_batches=5), ReplicaPlan((stage(0, 4, 4), R1.stages[1]), 3))),
        "R1.S0 TP 2 -> 1; micro-batches 4+4 -> 5+3",
    ),
    (
        ParallelPlan(2, (ReplicaPlan(R1.stages, 8),), standby=(0, 2)),
        "R0 dropped; micro-batches 4+4 -> 8; standby none -> 0,2",
    ),
    (
        ParallelPlan(2, (ReplicaPlan((stage(0, 8, 0, 1),), 4), R1)),
        "R0 stages 2 -> 1 (TP 2+2 -> 2); R0 layers 4+4 -> 8",
    ),
    (
        ParallelPlan(2, (ReplicaPlan((stage(0, 3, 0, 1), stage(3, 8, 2, 3)), 4), R1)),
        "R0 layers 4+4 -> 3+5",
    ),
    (
        ParallelPlan(2, (ReplicaPlan((stage(0, 4, 0, 1, weights=(3, 1)), stage(4, 8, 3, 2)), 4), R1)),
        "R0.S0 weights 1:1 -> 3:1; R0.S1 ranks 2,3 -> 3,2",
    ),
    (
        ParallelPlan(2, (R0, R1, ReplicaPlan((stage(0, 8, 8),), 0))),
        "R2 new with TP 1; micro-batches 4+4 -> 4+4+0",
    ),
]


@pytest.mark.parametrize(("new", "words"), CASES, ids=[w for _, w in CASES])
def test_change_in_words(new: ParallelPlan, words: str) -> None:
    assert describe_change(OLD, new) == words


def test_plan_in_words() -> None:
    assert describe_plan(dataclasses.replace(OLD, standby=(9,))) == (
        "epoch 1: R0 [0,1 | 2,3] layers 4+4, 4 micro-batches; R1 [4,5 | 6,7] layers 4+4, 4 micro-batches; standby 9"
    )


def test_long_lists_count_repetitions() -> None:
    many = ParallelPlan(1, tuple(ReplicaPlan((stage(0, 8, a),), 4) for a in range(12)))
    fewer = ParallelPlan(2, (ReplicaPlan((stage(0, 8, 0),), 5), *many.replicas[2:]))
    assert describe_change(many, fewer) == "R1 dropped; micro-batches 12x4 -> 5+10x4"


def test_large_changes_are_counted() -> None:
    """The words go into messages whose texts hold 4,096 characters."""
    wide = [tuple(range(100 * a, 100 * a + 90)) for a in range(40)]
    old = ParallelPlan(1, tuple(ReplicaPlan((stage(0, 8, *ranks),), 1) for ranks in wide))
    new = ParallelPlan(
        2, tuple(ReplicaPlan((stage(0, 8, *ranks[::-1]),), 1) for ranks in wide), standby=tuple(range(4000, 4099))
    )
    words = describe_change(old, new)
    assert words.startswith("R0.S0 ranks 90 ranks -> 90 ranks; ")
    assert words.endswith("and 29 more changes")
    assert len(words) < 1000
