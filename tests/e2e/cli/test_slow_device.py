"""A device runs at half speed for a while: noticed, planned around, taken back. Virtual clock; a minute or two long."""

from __future__ import annotations

import pytest

from benchmarks.adaptation import slow


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_a_slow_device_is_planned_around_and_taken_back() -> None:
    document = await slow(1e9)
    assert document["holds"], document["failures"]
    (incident,) = document["incidents"]
    assert (incident["kind"], incident["rank"], incident["resolution"]) == ("DeviceSlow", 5, "recovered")
    assert incident["detected_iteration"] - 20 <= 6
    assert incident["p"] == pytest.approx(0.5, rel=0.05)
    acted = [d for d in document["decisions"] if d["action"] == "act"]
    assert acted[0]["trigger"].startswith("rank 5 slow")
    assert any(d["trigger"].startswith("rank 5 recovered") for d in acted)
    assert all(d["alternatives"] for d in acted)
    (met,) = document["adaptation"]
    assert met["iterations_to_recover"] is not None
    assert met["iterations_to_recover"] <= 15
    assert met["at_15_iterations_of_bound"] >= 0.9
    assert met["at_the_end_of_healthy"] >= 0.93  # generous: other processes may have come meanwhile
    assert document["planned_changes"][0]["achieved_tokens_per_s"] is not None
