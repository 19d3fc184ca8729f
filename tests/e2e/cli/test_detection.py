"""Detection in whole demos on the virtual clock, over what may go wrong with the detector itself. Minutes long."""

from __future__ import annotations

import pytest

from benchmarks.detection import live


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_slow_pipeline_edge_is_named(by_hand: bool) -> None:
    told = await live.slow_link(150 if by_hand else 60, by_hand=by_hand)
    assert told["verdict"]["ranks"] == [0, 1]
    found = told["evidence"]["iteration"] - told["evidence"]["first_iteration"]
    assert 0 <= found <= 10
    assert by_hand or told["evidence"]["first_iteration"] == pytest.approx(30, abs=1)
    assert told["verdict"]["p"] == pytest.approx(0.25, rel=0.05)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_flipped_bit_is_repaired_and_its_device_named() -> None:
    told, document = await live.corrupted(1)
    assert told["verdict"]["ranks"] == [1]
    assert told["verdict"]["confidence"] > 0.99
    assert document["holds"], document["failures"]  # parity with the undisturbed run among it


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
