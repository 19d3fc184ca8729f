"""The planner's own process: answers, is killed when it is late, and is gone when nobody listens."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import psutil
import pytest

from resihp_messages import JobSpec
from resihp_scheduler.planning import Choice, JobPlanning, NoPlan
from resihp_scheduler.question import Question
from resihp_scheduler.solve import solve, solve_fast
from resihp_scheduler.solver import ProcessSolver
from support.waiting import wait_for

SPEC = JobSpec()
QUESTION = Question(
    spec=SPEC,
    devices=tuple((rank, f"n{rank // 4}") for rank in range(8)),
    alive=frozenset(range(8)),
    speeds={5: 0.5},
    plan=JobPlanning(SPEC).initial().with_epoch(1),
    epoch=2,
    horizon_s=600.0,
    rebuild_s=0.2,
)


async def test_the_process_answers_as_this_one_would() -> None:
    solver = ProcessSolver()
    try:
        answer = await solver.ask(QUESTION, 60.0)
        expected = solve(Question.from_dict(QUESTION.to_dict()), time.monotonic)
        assert isinstance(answer, Choice)
        assert isinstance(expected, Choice)
        assert replace(answer, reason="") == replace(expected, reason="")
        nobody = replace(QUESTION, alive=frozenset())
        assert isinstance(await solver.ask(nobody, 60.0), NoPlan)
        assert solver.num_killed == 0
    finally:
        await solver.close()


async def test_a_late_process_is_killed_and_the_next_question_is_answered() -> None:
    solver = ProcessSolver()
    try:
        await solver.start()
        assert await solver.ask(QUESTION, 0.01) is None  # it is still importing
        assert solver.num_killed == 1
        answer = await solver.ask(QUESTION, 60.0)
        assert isinstance(answer, Choice)
        assert answer.plan.epoch == 2
    finally:
        await solver.close()
    me = psutil.Process()  # of the killed one nothing is left either
    await wait_for(lambda: not _solvers(me), 10)


def _solvers(of: psutil.Process) -> list[psutil.Process]:
    return [p for p in of.children() if "resihp_scheduler.solver_process" in " ".join(p.cmdline())]


async def test_a_late_process_may_finish_and_only_its_answer_is_dropped() -> None:
    solver = ProcessSolver()
    try:
        await solver.start()
        assert await solver.ask(QUESTION, 0.01, may_finish=True) is None
        other = replace(QUESTION, speeds={2: 0.4}, epoch=7)
        answer = await solver.ask(other, 60.0)
        assert isinstance(answer, Choice)
        assert answer.plan.epoch == 7  # not the answer to the first question
        assert solver.num_killed == 0
    finally:
        await solver.close()


@pytest.mark.parametrize("speeds", [{}, {5: 0.5}, {1: 0.3, 6: 0.8}])
def test_the_fast_planner_stands_in(speeds: dict[int, float]) -> None:
    answer = solve_fast(replace(QUESTION, speeds=speeds), time.monotonic)
    assert isinstance(answer, Choice)
    assert answer.stay_tokens_per_s is not None
    assert answer.stays == (not speeds)
    best = solve(replace(QUESTION, speeds=speeds), time.monotonic)
    assert isinstance(best, Choice)
    assert (best.predicted_tokens_per_s or 0.0) >= 0.97 * (answer.predicted_tokens_per_s or 0.0)


async def test_it_ends_with_its_input() -> None:
    process = await asyncio.create_subprocess_exec(
        *_command(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 120) == 0


def _command() -> tuple[str, ...]:
    import sys

    return (sys.executable, "-m", "resihp_scheduler.solver_process")
