"""What the members of an epoch conclude from their headers (docs/protocol.md, claims 1 to 3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resihp_plan import ParallelPlan, layout
from resihp_trainer.join import HEADER_BYTES, Applied, Conclusion, Header, JoinRefused, Synchronised, conclude
from support.trainer_cases import HEALTHY, SPEC, replica, stage

NEXT = ParallelPlan(3, (HEALTHY.replicas[0], replica(3, stage(0, 2, [4, 5]), stage(2, 4, [6]))))
MIDDLE = ParallelPlan(2, (replica(6, stage(0, 1, range(4)), stage(1, 4, [4, 5, 6])),))
KNOWN = {plan.epoch: plan for plan in (HEALTHY, MIDDLE, NEXT)}
APPLIED = Applied(5, 1, 400, 90, 2.5, 800.0)
DONE = Header(NEXT.digest, 5, True, ((1, HEALTHY.digest),), None, APPLIED)
MISSED = Header(NEXT.digest, 4, True, ((1, HEALTHY.digest),), Synchronised(5, 1), replace(APPLIED, iteration=4))


def concluded(headers: dict[int, Header], plan: ParallelPlan = NEXT) -> Conclusion:
    return conclude(headers, plan, layout(plan, SPEC), SPEC, KNOWN)


def test_headers_keep_everything() -> None:
    full = replace(MISSED, held=((1, HEALTHY.digest), (2, MIDDLE.digest)), is_original=False)
    for header in (full, DONE, MISSED, Header(NEXT.digest, 0, True)):
        assert len(header.pack()) == HEADER_BYTES
        assert Header.unpack(header.pack()) == header
    with pytest.raises(ValueError, match="at most 2"):
        replace(full, held=full.held * 2).pack()


def test_the_first_epoch_creates_state() -> None:
    fresh = Header(HEALTHY.digest, 0, True)
    found = concluded(dict.fromkeys(range(8), fresh), HEALTHY)
    assert (found.committed, found.base, found.moves) == (0, None, None)


def test_lost_state_is_never_created_anew() -> None:
    newcomer = Header(HEALTHY.digest, 0, False)
    with pytest.raises(JoinRefused, match="state lost"):
        concluded({**dict.fromkeys(range(7), Header(HEALTHY.digest, 0, True)), 7: newcomer}, HEALTHY)


def test_those_one_behind_settle() -> None:
    found = concluded({0: DONE, 1: DONE, 2: MISSED, 3: DONE, 4: MISSED, 5: DONE, 6: DONE})
    assert (found.committed, found.settle, found.applied) == (5, {2, 4}, APPLIED)
    assert found.base is not None
    assert found.base.plan == HEALTHY
    assert not found.stale


def test_nobody_committed_so_nobody_settles() -> None:
    found = concluded(dict.fromkeys(range(7), MISSED))
    assert (found.committed, found.settle) == (4, frozenset())


@pytest.mark.parametrize(
    "old",
    [
        replace(MISSED, kept=None),
        replace(MISSED, kept=Synchronised(4, 1)),
        replace(MISSED, kept=Synchronised(5, 2)),  # of a vote in another epoch than the one that was applied
        replace(MISSED, committed=3),
        replace(MISSED, held=((2, MIDDLE.digest),)),
    ],
)
def test_who_cannot_settle_is_a_newcomer(old: Header) -> None:
    found = concluded({**dict.fromkeys(range(7), DONE), 1: old})
    assert found.settle == frozenset()
    assert found.stale == {1}
    assert found.moves is not None
    assert {move.destination for move in found.moves.moves} >= {1}  # it gets everything from rank 5


def test_the_base_is_held_by_all_if_there_is_one() -> None:
    """Some passed the barrier of epoch 2, some did not: all still hold epoch 1."""
    both = replace(DONE, held=((1, HEALTHY.digest), (2, MIDDLE.digest)))
    found = concluded({**dict.fromkeys(range(5), DONE), 5: both, 6: both})
    assert found.base is not None
    assert found.base.plan == HEALTHY


def test_equal_holders_choose_the_smaller_move() -> None:
    both = replace(DONE, held=((1, HEALTHY.digest), (2, MIDDLE.digest)))
    found = concluded(dict.fromkeys(range(7), both))
    assert found.base is not None
    assert found.base.plan == HEALTHY  # NEXT differs from it by one rank only
    middle_again = MIDDLE.with_epoch(3)
    headers = dict.fromkeys(range(7), replace(both, plan_digest=middle_again.digest))
    found = concluded(headers, middle_again)
    assert found.base is not None
    assert found.base.plan == MIDDLE
    assert found.moves is not None
    assert not found.moves.moves


def test_a_newcomer_that_verified_the_interrupted_epoch() -> None:
    """Rank 6 joined in epoch 2 and holds only that; the others hold epoch 1, which is complete without it."""
    newcomer = replace(DONE, held=((2, MIDDLE.digest),))
    found = concluded({**dict.fromkeys(range(6), DONE), 6: newcomer})
    assert found.base is not None
    assert found.base.plan == HEALTHY


def test_other_plans_are_refused() -> None:
    with pytest.raises(JoinRefused, match=r"ranks \[3\] have another plan"):
        concluded({**dict.fromkeys(range(7), DONE), 3: replace(DONE, plan_digest=HEALTHY.digest)})


def test_unknown_layouts_are_refused() -> None:
    with pytest.raises(JoinRefused, match="not known"):
        concluded(dict.fromkeys(range(7), replace(DONE, held=((1, MIDDLE.digest),))))


def test_missing_slices_are_named() -> None:
    """Both holders of stage 0's first half are gone."""
    plan = ParallelPlan(3, (replica(6, stage(0, 2, [1, 5]), stage(2, 4, [2, 3])),))
    headers = {rank: replace(DONE, plan_digest=plan.digest) for rank in plan.world}
    with pytest.raises(JoinRefused, match=r"state lost: no live holder.*embed\.weight\[0:128\]"):
        concluded(headers, plan)
