"""Many planned changes in one job: the same processes, nothing leaks, nothing is computed differently."""

from __future__ import annotations

import pytest

from benchmarks.plan_changes import LAYOUTS, measure

CHANGES = 3 * len(LAYOUTS) + 1
"""So that the last layout was visited twice before, and the first of these visits has warmed everything up."""


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_job_changes_its_plan_again_and_again_without_leaking() -> None:
    series = await measure(CHANGES, ["--dtype", "float64", "--verify"])
    assert [look.change for look in series.looks] == list(range(CHANGES + 1))
    assert len(series.document["planned_changes"]) == CHANGES
    assert series.same_processes()
    assert len(series.settled()) >= 2
    assert series.growth("num_threads") == 0
    assert series.growth("num_descriptors") == 0
    assert series.growth("rss_bytes") < 0.05
    assert series.document["committed"] == series.document["iterations"]
    assert series.document["samples"]["lost"] == series.document["samples"]["repeated"] == 0
    assert series.document["parity"]["max_abs_diff"] <= 1e-9
