"""When the scheduler thinks about a job: on a clock that the test owns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from resihp_chassis import ManualClock
from resihp_scheduler.desk import RETRY_S, Desk
from resihp_store import LeadershipLost, StoreUnavailable


class Thoughts:
    """Notes when each job was thought about; `answers` are given in turn, then None."""

    def __init__(self, clock: ManualClock, *answers: float | Exception | None) -> None:
        self.clock, self.answers = clock, list(answers)
        self.made: list[tuple[str, float]] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, job: str) -> float | None:
        self.made.append((job, self.clock.monotonic()))
        if self.hold is not None:
            await self.hold.wait()
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def running(thoughts: Thoughts, on_deposed: Callable[[], None] = lambda: None) -> AsyncIterator[Desk]:
    desk = Desk(thoughts, thoughts.clock, on_deposed)
    task = asyncio.create_task(desk.run())
    try:
        yield desk
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_now_later_and_again() -> None:
    clock = ManualClock()
    thoughts = Thoughts(clock, 5.0, None)
    async with running(thoughts) as desk:
        desk.wake("a")
        desk.wake("b", 2.0)
        desk.wake("b", 3.0)  # the earlier one counts
        await clock.advance(1.0)
        assert thoughts.made == [("a", 0.0)]
        await clock.advance(10.0)
    assert thoughts.made == [("a", 0.0), ("b", 2.0), ("a", 5.0)]


async def test_a_job_is_thought_about_once_at_a_time_and_holds_up_no_other() -> None:
    clock = ManualClock()
    thoughts = Thoughts(clock)
    thoughts.hold = asyncio.Event()
    async with running(thoughts) as desk:
        desk.wake("a")
        await clock.advance(1.0)
        desk.wake("a")  # news meanwhile
        desk.wake("b")
        await clock.advance(1.0)
        assert thoughts.made == [("a", 0.0), ("b", 1.0)]
        thoughts.hold.set()
        await clock.advance(1.0)
        assert thoughts.made == [("a", 0.0), ("b", 1.0), ("a", 2.0)]


async def test_trouble_of_one_job_ends_nothing() -> None:
    clock = ManualClock()
    thoughts = Thoughts(clock, StoreUnavailable("away"), ZeroDivisionError("a bug"))
    async with running(thoughts) as desk:
        desk.wake("a")
        await clock.advance(RETRY_S)
        await clock.advance(20 * RETRY_S)
    assert [at for _, at in thoughts.made] == [0.0, RETRY_S, 11 * RETRY_S]


async def test_a_deposed_leader_says_so() -> None:
    clock, deposed = ManualClock(), asyncio.Event()
    async with running(Thoughts(clock, LeadershipLost("another one")), deposed.set) as desk:
        desk.wake("a")
        await clock.advance(0.1)
    assert deposed.is_set()
