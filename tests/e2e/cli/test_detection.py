"""Detection in whole demos on the virtual clock, over what may go wrong with the detector itself. Minutes long."""

from __future__ import annotations

import pytest

from benchmarks.detection import live


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_slow_pipeline_edge_is_named() -> None:
    told = await live.slow_link(60)
    assert told["verdict"]["ranks"] == [0, 1]
    assert 30 < told["evidence"]["iteration"] <= 40
    assert told["verdict"]["p"] == pytest.approx(0.25, rel=0.05)


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_a_detector_that_is_killed_again_and_again_says_each_fault_once() -> None:
    document, kills = await live.with_kills(0.83, 70)
    assert kills == len(live.KILLED_AT)
    assert document["holds"], document["failures"]
    (incident,) = document["incidents"]
    assert (incident["kind"], incident["rank"]) == ("DeviceSlow", live.RANK)
    assert incident["p"] == pytest.approx(0.83, rel=0.05)
    assert incident["detected_iteration"] - live.AT <= 20
