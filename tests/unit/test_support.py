"""The test harness itself: bounded waiting, and servers that may not be skipped in CI."""

from __future__ import annotations

import pytest

from support.servers import server_missing
from support.waiting import wait_for, wait_for_blocking


async def test_wait_for_returns_the_first_true_value() -> None:
    values = iter([0, "", "ready"])
    assert await wait_for(lambda: next(values), timeout_s=5.0) == "ready"


async def test_wait_for_takes_a_coroutine_function() -> None:
    async def condition() -> int:
        return 3

    assert await wait_for(condition, timeout_s=5.0) == 3


async def test_wait_for_names_what_it_waited_for() -> None:
    with pytest.raises(TimeoutError, match=r"not within 0.12 s: the moon \(last value: None\)"):
        await wait_for(lambda: None, timeout_s=0.02, what="the moon")


def test_wait_for_blocking_is_bounded() -> None:
    assert wait_for_blocking(lambda: 7) == 7
    with pytest.raises(TimeoutError):
        wait_for_blocking(lambda: False, timeout_s=0.02)


def test_a_missing_server_fails_in_ci_and_skips_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="xyzd is not on this machine: install it"):
        server_missing("xyzd", "install it")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception):
        server_missing("xyzd", "install it")


def test_every_test_carries_the_marker_of_its_folder(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("unit") is not None
