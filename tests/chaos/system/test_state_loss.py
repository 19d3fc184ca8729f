"""Both nodes that hold the second half of the model die at once: the others go back to a snapshot and finish alone."""

from __future__ import annotations

import pytest

from benchmarks.demo import run_demo

ITERATIONS = 18
EVERY = 5


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_all_holders_of_a_stage_die_with_their_nodes() -> None:
    nodes = ("--agents", "4", "--kill-agent", "1@8", "--kill-agent", "3@8")
    document = await run_demo(
        "--iterations", str(ITERATIONS), *nodes, "--snapshots", str(EVERY), "--dtype", "float64", "--verify"
    )
    assert document["holds"], document["failures"]
    assert document["committed"] == ITERATIONS
    assert document["survivors"] == [0, 1, 4, 5]
    assert document["survivor_pids_unchanged"]
    last = document["recoveries"][-1]
    assert last["state_source"] == "snapshot"
    assert 0 <= last["lost_iterations"] <= EVERY + 1  # a copy may be late on a crowded host
    assert document["samples"]["lost"] == document["samples"]["repeated"] == 0
    assert document["parity"]["max_abs_diff"] <= 1e-9
