"""A starved worker is not a frozen one."""

from __future__ import annotations

import os

import pytest

from resihp_agent.silence import Scheduling, Silence, scheduling

STALL_S = 1.5


def silence(*, used_s: float, waited_s: float) -> Silence:
    """Since the last sign of life the worker used and waited for the processor this long."""
    quiet = Silence(last_sign_s=100.0)
    quiet.look(100.0, Scheduling(7.0, 3.0))
    quiet.look(100.0, Scheduling(7.0 + used_s, 3.0 + waited_s))
    return quiet


@pytest.mark.parametrize("letter", ["S", "D", "R", "T"])
def test_short_silence_is_nothing(letter: str) -> None:
    assert silence(used_s=0.0, waited_s=0.0).stalled_s(1.4, letter, STALL_S) is None


@pytest.mark.parametrize("letter", ["S", "D"])
def test_sleeping_without_a_sign_is_a_stall(letter: str) -> None:
    assert silence(used_s=0.0, waited_s=0.0).stalled_s(1.6, letter, STALL_S) == pytest.approx(1.6)


@pytest.mark.parametrize("letter", ["T", "t"])
def test_stopped_has_no_excuse(letter: str) -> None:
    assert silence(used_s=0.0, waited_s=1.6).stalled_s(1.6, letter, STALL_S) == pytest.approx(1.6)


def test_spinning_in_vain_is_a_stall() -> None:
    assert silence(used_s=1.6, waited_s=0.0).stalled_s(1.6, "R", STALL_S) == pytest.approx(1.6)


def test_waiting_for_a_processor_is_not() -> None:
    assert silence(used_s=0.1, waited_s=2.9).stalled_s(3.0, "R", STALL_S) is None
    assert silence(used_s=0.1, waited_s=2.9).stalled_s(3.0, "S", STALL_S) is None
    # The wait that is going on now is not on the kernel's account yet.
    assert silence(used_s=0.0, waited_s=0.0).stalled_s(3.0, "R", STALL_S) is None


def test_excuses_end() -> None:
    assert silence(used_s=0.1, waited_s=15.9).stalled_s(16.0, "R", STALL_S) == pytest.approx(16.0)


def test_spinning_on_a_crowded_machine_takes_longer_but_is_found() -> None:
    crowded = silence(used_s=1.0, waited_s=3.0)
    assert crowded.stalled_s(4.0, "R", STALL_S) is None
    assert silence(used_s=1.6, waited_s=4.8).stalled_s(6.4, "R", STALL_S) == pytest.approx(1.6)


def test_a_sign_of_life_starts_the_account_anew() -> None:
    quiet = silence(used_s=1.6, waited_s=0.0)
    quiet.look(101.6, Scheduling(8.6, 3.0))
    assert quiet.stalled_s(1.6, "R", STALL_S) is None


def test_without_an_account_wall_time_decides() -> None:
    quiet = Silence(last_sign_s=0.0)
    quiet.look(0.0, None)
    assert quiet.stalled_s(1.6, "R", STALL_S) == pytest.approx(1.6)


def test_the_kernel_keeps_the_account_or_says_so() -> None:
    before = scheduling(os.getpid())
    total = sum(i * i for i in range(200_000))
    after = scheduling(os.getpid())
    assert total > 0
    if before is not None and after is not None:
        assert after.on_cpu_s > before.on_cpu_s
    assert scheduling(2**22 + 1) is None
