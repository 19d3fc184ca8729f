"""Many frames in, one acknowledgement per node out."""

from __future__ import annotations

from resihp_agent.progress import PlanProgress
from resihp_messages import link
from support.scripted_worker import committed

DIGEST, OTHER = "a" * 64, "b" * 64


def plan(**changes: object) -> PlanProgress:
    values = {
        "node": "n0",
        "epoch": 2,
        "mode": "recovery",
        "reconfiguration_id": "rc",
        "digest": DIGEST,
        "world": (0, 1, 2),
        "since_s": 10.0,
        "plan_s": 0.05,
        **changes,
    }
    return PlanProgress(**values)  # type: ignore[arg-type]


def held(epoch: int = 2) -> link.PlanHeld:
    return link.PlanHeld(epoch=epoch, reconfiguration_id="rc", digest=DIGEST)


def installed(rank: int, *, digest: str = DIGEST, equal: bool = True) -> link.PlanInstalled:
    return link.PlanInstalled(
        epoch=2,
        reconfiguration_id="rc",
        digest=digest,
        committed=14,
        abort_s=0.01 * rank,
        rebuild_s=0.1,
        move_s=0.2,
        bytes_received=rank * 10,
        digests_equal=equal,
    )


def test_prepared_once_when_all_hold_it() -> None:
    p = plan()
    assert [p.held(0, held()), p.held(0, held()), p.held(1, held())] == [None, None, None]
    ack = p.held(2, held())
    assert ack is not None
    assert (ack.ranks, ack.digest) == ((0, 1, 2), DIGEST)
    assert p.held(2, held()) is None


def test_applied_is_columnar_in_rank_order() -> None:
    p = plan()
    assert p.installed(2, installed(2)) is None
    assert p.installed(0, installed(0)) is None
    ack = p.installed(1, installed(1))
    assert ack is not None
    assert ack.ranks == (0, 1, 2)
    assert ack.abort_s == (0.0, 0.01, 0.02)
    assert ack.bytes_received == (0, 10, 20)
    assert (ack.committed, ack.digests_equal, ack.plan_s) == (14, True, 0.05)


def test_one_unequal_digest_spoils_the_proof() -> None:
    p = plan(world=(0, 1))
    p.installed(0, installed(0, equal=False))
    ack = p.installed(1, installed(1))
    assert ack is not None
    assert not ack.digests_equal


def test_a_rank_with_another_plan_is_told() -> None:
    p = plan(world=(0,))
    ack = p.installed(0, installed(0, digest=OTHER))
    assert ack is not None
    assert (ack.digest, ack.digests_equal) == (OTHER, False)


def test_resumed_counts_from_the_notice() -> None:
    p = plan(world=(0, 1))
    assert p.resumed(1, committed(2, 15, first=True), 12.0) is None
    ack = p.resumed(0, committed(2, 15, first=True), 12.5)
    assert ack is not None
    assert (ack.iteration, ack.since_notice_s, ack.redo_s) == (15, 2.5, (0.02, 0.02))
    assert p.is_resumed


def test_frames_of_other_epochs_and_ranks_are_ignored() -> None:
    p = plan(world=(0,))
    assert p.held(0, held(epoch=1)) is None
    assert p.held(9, held()) is None
    assert p.held(0, held()) is not None


def test_a_death_ends_the_acknowledgements() -> None:
    p = plan(world=(0, 1))
    p.held(0, held())
    p.lose(1)
    assert p.held(1, held()) is None
    assert p.installed(0, installed(0)) is None
    p2 = plan(world=(0,))
    p2.lose(7)  # lives elsewhere: others will say so, this node's own part can still be complete
    assert p2.held(0, held()) is not None


def test_the_first_refusal_speaks_for_the_node() -> None:
    p = plan()
    refusal = link.PlanRefused(epoch=2, reconfiguration_id="rc", reason="digest")
    ack = p.refused(1, refusal)
    assert ack is not None
    assert ack.reason == "rank 1: digest"
    assert p.refused(2, refusal) is None
