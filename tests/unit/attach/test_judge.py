"""Who caused the end of an attached job, and when a job hangs."""

from __future__ import annotations

import signal

import pytest

from resihp_agent.attach.judge import Exit, culprits, hangs
from resihp_agent.attach.rank import AttachedRank
from resihp_messages.attach import AttachBeat, AttachHello


def gone(rank: int, code: int | None, at_s: float, error: str = "") -> Exit:
    return Exit(rank, 100 + rank, code, error, 7, at_s, 0.1)


TERM, KILL, ABRT = -signal.SIGTERM, -signal.SIGKILL, -signal.SIGABRT


@pytest.mark.parametrize(
    ("exits", "guilty"),
    [
        # torchrun: the survivors raise, or are stopped before they can
        ([gone(2, KILL, 1.0), gone(0, TERM, 1.1), gone(1, 1, 1.05, "RuntimeError: peer"), gone(3, TERM, 1.1)], [2]),
        # the death is noticed later than what follows from it
        ([gone(0, 1, 0.9, "RuntimeError: peer"), gone(2, KILL, 1.0)], [2]),
        ([gone(1, None, 1.0), gone(0, TERM, 1.1)], [1]),  # the kernel did not say
        ([gone(0, 1, 1.0, "ValueError: nan"), gone(1, 1, 1.2, "RuntimeError: peer")], [0]),
        ([gone(0, ABRT, 1.2), gone(3, -signal.SIGSEGV, 1.0)], [3]),  # a library aborts survivors
        ([gone(1, KILL, 1.0), gone(2, KILL, 1.1)], [1, 2]),
        ([gone(0, TERM, 1.0), gone(1, TERM, 1.0)], []),  # somebody stopped the job
        ([], []),
    ],
)
def test_culprits(exits: list[Exit], guilty: list[int]) -> None:
    assert [e.rank for e in culprits(exits)] == guilty


@pytest.mark.parametrize(
    ("exit_", "text"),
    [
        (gone(0, KILL, 0), "SIGKILL"),
        (gone(0, 3, 0), "exit status 3"),
        (gone(0, None, 0), "it vanished without a word"),
        (gone(0, 1, 0, "ValueError: x"), "ValueError: x"),
        (gone(0, -40, 0), "signal 40"),
    ],
)
def test_texts(exit_: Exit, text: str) -> None:
    assert exit_.text == text


def quiet(rank: int, quiet_s: float, *, committed: int = 5, protected_s: float = 0.0) -> AttachedRank:
    hello = AttachHello(job="j", rank=rank, world_size=4, local_rank=rank, local_world_size=4, hang_s=10.0)
    known = AttachedRank(hello, 100 + rank, None, 0.0)
    known.heard(AttachBeat(iteration=5, ops=9, quiet_s=quiet_s, protected_s=protected_s), 100.0)
    known.committed = committed
    return known


def test_a_job_hangs_when_nobody_makes_progress() -> None:
    assert hangs([quiet(0, 11.0), quiet(1, 12.0)], 100.0)
    assert not hangs([quiet(0, 11.0), quiet(1, 2.0)], 100.0)
    assert hangs([quiet(0, 8.0), quiet(1, 9.0)], 103.0)  # time passes between beats, too
    assert not hangs([], 100.0)


def test_protection_and_the_first_iteration_take_longer() -> None:
    assert not hangs([quiet(0, 11.0), quiet(1, 11.0, protected_s=60.0)], 100.0)
    assert hangs([quiet(0, 11.0), quiet(1, 11.0, protected_s=60.0)], 161.0)
    assert not hangs([quiet(0, 11.0, committed=0)], 100.0)
    assert not hangs([quiet(0, 599.0, committed=0)], 100.0)
    assert hangs([quiet(0, 601.0, committed=0)], 100.0)


def test_who_is_frozen_does_not_count_as_progress() -> None:
    frozen = quiet(1, 0.0)
    frozen.stalled_at_s = 90.0
    assert hangs([quiet(0, 11.0), frozen], 100.0)
    assert not hangs([frozen], 100.0)  # that has been said already
