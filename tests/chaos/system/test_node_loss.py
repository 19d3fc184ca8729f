"""SIGKILL of one of two agents with its four workers; it starts again: the others go on, then all eight train."""

from __future__ import annotations

import pytest

from benchmarks.demo import run_demo

ITERATIONS = 40


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_half_of_the_devices_go_and_come_back() -> None:
    node = ("--agents", "2", "--kill-agent", "1@8", "--rejoin-agent", "1@8")
    document = await run_demo("--iterations", str(ITERATIONS), *node, "--dtype", "float64", "--verify")
    assert document["holds"], document["failures"]
    assert document["committed"] == ITERATIONS
    assert document["survivors"] == [0, 1, 2, 3]
    assert document["returned"] == [4, 5, 6, 7]
    assert document["survivor_pids_unchanged"]
    assert {tuple(r["ranks"]) for r in document["recoveries"]} == {(4, 5, 6, 7)}
    (growth,) = document["planned_changes"]
    assert growth["reason"].startswith("ranks 4, 5, 6, 7 returned; ")
    assert document["epochs"][-1]["epoch"] == growth["new_epoch"]
    assert document["samples"]["lost"] == document["samples"]["repeated"] == 0
    assert document["parity"]["max_abs_diff"] <= 1e-9
