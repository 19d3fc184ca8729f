"""Phases are maxima over ranks and nodes; each check of the proof can fail."""

from __future__ import annotations

from typing import Any

import pytest

from resihp_messages import ack
from resihp_scheduler.phases import Outcome, outcome

DIGEST = "ab" * 32


def applied(node: str, ranks: tuple[int, ...], **changes: Any) -> ack.PlanApplied:
    values: dict[str, Any] = {
        "node": node,
        "reconfiguration_id": "r",
        "digest": DIGEST,
        "ranks": ranks,
        "abort_s": tuple(0.1 * (r + 1) for r in ranks),
        "rebuild_s": tuple(0.2 for _ in ranks),
        "move_s": tuple(0.3 for _ in ranks),
        "bytes_received": tuple(10 for _ in ranks),
        "committed": 7,
        "digests_equal": True,
    }
    return ack.PlanApplied(**values | changes)


def resumed(node: str, ranks: tuple[int, ...], **changes: Any) -> ack.IterationResumed:
    values: dict[str, Any] = {
        "node": node,
        "reconfiguration_id": "r",
        "iteration": 8,
        "ranks": ranks,
        "redo_s": tuple(0.5 for _ in ranks),
        "since_notice_s": 1.0 + len(node),
        "samples_expected": 16,
        "samples_once": 16,
    }
    return ack.IterationResumed(**values | changes)


def compute(first: ack.PlanApplied, last: ack.IterationResumed | None = None) -> Outcome:
    return outcome(
        [first, applied("bb", (2, 3))],
        [last or resumed("a", (0, 1)), resumed("bb", (2, 3))],
        world=(0, 1, 2, 3),
        digest=DIGEST,
        detect_s=0.25,
        plan_s=0.125,
    )


def test_maxima_and_sums() -> None:
    result = compute(applied("a", (0, 1)))
    assert result.phases_s == pytest.approx(
        {"detect": 0.25, "plan": 0.125, "abort": 0.4, "rebuild": 0.2, "move": 0.3, "redo": 0.5, "total": 3.25}
    )
    assert result.bytes_moved == 40
    assert all(result.proof.values())


def test_the_agents_measure_of_planning_counts() -> None:
    assert compute(applied("a", (0, 1), plan_s=0.75)).phases_s["plan"] == 0.75


@pytest.mark.parametrize(
    ("first", "last", "broken"),
    [
        (applied("a", (0,)), None, "layers_complete"),
        (applied("a", (0, 1), committed=6), None, "layers_complete"),
        (applied("a", (0, 1), digests_equal=False), None, "digests_equal"),
        (applied("a", (0, 1), digest="cd" * 32), None, "plan_digest_equal"),
        (applied("a", (0, 1)), resumed("a", (0, 1), samples_once=15), "samples_once"),
    ],
)
def test_each_check_can_fail(first: ack.PlanApplied, last: ack.IterationResumed | None, broken: str) -> None:
    proof = compute(first, last).proof
    assert [name for name, ok in proof.items() if not ok] == [broken]


def test_what_was_given_up_is_told() -> None:
    assert (compute(applied("a", (0, 1))).lost_iterations, compute(applied("a", (0, 1))).state_source) == (0, "live")
    found = compute(applied("a", (0, 1), lost_iterations=4, state_source="snapshot"))
    assert (found.lost_iterations, found.state_source) == (4, "snapshot")
