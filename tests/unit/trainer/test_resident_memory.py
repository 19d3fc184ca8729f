"""Resident memory is looked at now and then: reports come more often than it changes."""

from __future__ import annotations

import pytest

from resihp_trainer.memory import AGE_S, ResidentMemory


def test_a_look_is_half_a_second_old_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    memory = ResidentMemory(lambda: now[0])
    sizes = iter((100, 200, 300))
    monkeypatch.setattr(memory, "bytes", lambda: next(sizes))
    assert memory.recent_bytes() == 100
    now[0] = 0.9 * AGE_S
    assert memory.recent_bytes() == 100
    now[0] = AGE_S
    assert memory.recent_bytes() == 200
    assert memory.recent_bytes(now=True) == 300
    assert memory.recent_bytes() == 300


def test_it_is_that_of_this_process() -> None:
    before = ResidentMemory().bytes()
    held = b"x" * (64 << 20)
    assert ResidentMemory().bytes() >= before + len(held) // 2
