"""Whom the others wait for, and one verdict per hang."""

from __future__ import annotations

from resihp_detector.hangs import Hangs, missing
from resihp_messages import AnyEnvelope, event


def at(rank: int, seq: int, *, done: bool = False, group: str = "dp", op: str = "all_reduce") -> event.StuckRank:
    return event.StuckRank(rank=rank, quiet_s=9.0, op=op, seq=seq, group=group, done=done, where=f"train.py:{rank} x")


def test_who_is_behind_did_not_come() -> None:
    assert missing([at(0, 9), at(1, 8, done=True), at(2, 9)])[0] == (1,)


def test_groups_are_compared_by_themselves() -> None:
    assert missing([at(0, 9), at(1, 9), at(2, 40, group="tp"), at(3, 39, group="tp")])[0] == (3,)


def test_the_frozen_come_first() -> None:
    assert missing([at(0, 9), event.StuckRank(rank=1, quiet_s=0.0, frozen=True), at(2, 8)])[0] == (1,)


def test_one_that_waits_for_nobody() -> None:
    assert missing([at(0, 9), at(1, 9, done=True)])[0] == (1,)
    assert missing([at(0, 9), event.StuckRank(rank=1, quiet_s=9.0, where="loader.py:7 read")])[0] == (1,)


def test_nobody_is_behind() -> None:
    assert missing([at(0, 9), at(1, 9)]) == ((), "all ranks wait in the same collective")


def report(node: str, *ranks: event.StuckRank) -> event.WorkersHung:
    return event.WorkersHung(node=node, iteration=14, quiet_s=9.0, ranks=ranks)


def envelope(body: event.WorkersHung) -> AnyEnvelope:
    return AnyEnvelope.of(body, job="j", source="agent", incarnation="i", epoch=1)


def test_two_nodes_make_one_verdict() -> None:
    hangs = Hangs(grace_s=1.0)
    for body, now_s in ((report("n0", at(0, 9), at(1, 9)), 5.0), (report("n1", at(2, 8), at(3, 9)), 5.5)):
        hangs.reported(envelope(body), body, now_s)
    assert hangs.due(5.9) == ()
    (found,) = hangs.due(6.0)
    assert found.body.verdict.ranks == (2,)
    assert found.body.verdict.node == "n1"
    collectives = found.body.evidence["last_collective"]
    assert collectives == {str(rank): f"all_reduce #{8 if rank == 2 else 9} of dp" for rank in range(4)}
    assert found.body.evidence["where"]["2"] == "train.py:2 x"
    hangs.settled(found)
    assert hangs.due(99.0) == ()


def test_a_job_that_is_over_hangs_no_more() -> None:
    hangs = Hangs(grace_s=1.0)
    body = report("n0", at(0, 9))
    hangs.reported(envelope(body), body, 5.0)
    hangs.job_over("j")
    assert hangs.due(99.0) == ()
