"""The memory model against what real workers allocate (tests/unit/trainer has it tensor by tensor)."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.memory import DEEP, LONG, TINY, Case, measure
from resihp_plan import Schedule


@pytest.mark.soak
@pytest.mark.timeout(180)
@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ZB_H1])
def test_a_worker_takes_what_the_planner_foresees(schedule: Schedule) -> None:
    """Of the early stages, which hold most in flight. What every process grows by (threads, code) is some tens of MiB,
    whatever the model."""
    case = Case("small", dataclasses.replace(DEEP, schedule=schedule), LONG, 1024)
    foreseen, taken = case.foreseen, measure(case, exact=True)
    fixed = min(measure(TINY, exact=True).values())
    for rank in (0, 1):
        assert 0.7 <= (taken[rank] - fixed) / foreseen[rank] <= 1.3, (rank, taken, foreseen, fixed)
