"""`resihp demo` as its user runs it: real faults at every point, and every promise of its result."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.demo import run_demo

PHASES = ("detect_s", "plan_s", "abort_s", "rebuild_s", "move_s", "redo_s", "total_s")
HANG_BOUND_S = 60.0
"""Generous: a recovery that takes longer hangs. How long it really takes is in benchmarks/results."""


def promises_hold(document: dict[str, Any], *, iterations: int, lost: list[int]) -> None:
    """Everything that a disturbed float64 run must be able to show."""
    assert document["holds"], document["failures"]
    assert (document["iterations"], document["committed"]) == (iterations, iterations)
    assert document["survivor_pids_unchanged"] is True
    assert document["survivors"] == sorted(set(range(8)) - set(lost))
    assert all(fault["fired"] for fault in document["faults"])
    samples = document["samples"]
    assert samples["seen_once"] == samples["expected"] > 0
    assert samples["lost"] == samples["repeated"] == 0
    assert document["parity"]["max_abs_diff"] <= 1e-9
    assert document["parity"]["replicas_equal"] is True
    assert 0 < document["worker_rss_mb"]["max"] < 450
    assert [r["rank"] for r in document["recoveries"]] == lost
    for recovery in document["recoveries"]:
        assert all(recovery[phase] is not None and recovery[phase] >= 0 for phase in PHASES), recovery
        assert recovery["total_s"] < HANG_BOUND_S
        assert recovery["total_s"] >= recovery["redo_s"]
        assert all(recovery["proof"].values())
    digests = [epoch["digest"] for epoch in document["epochs"]]
    assert len(set(digests)) == len(digests) == len(lost) + 1


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("iterations", "struck"),
    [(12, 5), pytest.param(40, 15, marks=pytest.mark.soak, id="the command of the README")],
)
async def test_a_killed_worker_in_the_middle_of_the_run(iterations: int, struck: int) -> None:
    arguments = ("--iterations", str(iterations), "--kill", f"3@{struck}", "--dtype", "float64", "--verify")
    document = await run_demo(*arguments)
    promises_hold(document, iterations=iterations, lost=[3])
    before, after = document["epochs"]
    assert (before["first_iteration"], before["last_iteration"]) == (1, struck - 1)
    assert (after["first_iteration"], after["last_iteration"]) == (struck, iterations)
    assert document["recoveries"][0]["kind"] == "worker_lost"
    assert "standby" not in document["recoveries"][0]["difference"]  # the other seven go on, all of them
    assert document["throughput_tokens_per_s"]["before"] > 0
    assert document["throughput_tokens_per_s"]["after"] > 0


@pytest.mark.timeout(300)
async def test_a_frozen_worker_is_fenced() -> None:
    """Of two nodes, with keys on the bus."""
    arguments = ("--iterations", "10", "--freeze", "5@6", "--agents", "2", "--keys", "--dtype", "float64", "--verify")
    document = await run_demo(*arguments)
    promises_hold(document, iterations=10, lost=[5])
    (recovery,) = document["recoveries"]
    assert recovery["kind"] == "worker_frozen"


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_rank_0_of_two_nodes() -> None:
    """Rank 0 is not special: no store, no group and no vote depends on it; two agents, and keys on the bus."""
    arguments = ("--iterations", "10", "--kill", "0@6", "--agents", "2", "--keys", "--dtype", "float64", "--verify")
    promises_hold(await run_demo(*arguments), iterations=10, lost=[0])


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_one_after_another_at_every_point_of_an_iteration() -> None:
    """During the gradient all-reduce, during the vote, with half of the optimizer step done: three ranks in turn."""
    faults = ("--kill", "1@4:gradient", "--kill", "6@8:vote", "--kill", "4@12:optimizer")
    document = await run_demo("--iterations", "16", *faults, "--dtype", "float64", "--verify")
    promises_hold(document, iterations=16, lost=[1, 6, 4])
