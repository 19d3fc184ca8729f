"""The manual clock wakes sleepers in order, and those that sleep again."""

from __future__ import annotations

import asyncio

from resihp_chassis import Clock, ManualClock, SystemClock


async def test_sleepers_wake_in_order_at_their_time() -> None:
    clock = ManualClock(100.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
            tasks.create_task(sleeper(name, seconds))
        await clock.advance(2.5)
        assert woken == [("a", 101.0), ("b", 102.0)]
        await clock.advance(1.0)
    assert woken[-1] == ("c", 103.0)
    assert clock.monotonic() == 103.5


async def test_a_loop_turns_as_often_as_its_period_fits() -> None:
    clock = ManualClock()
    turns: list[float] = []

    async def loop() -> None:
        while True:
            await clock.sleep(0.5)
            turns.append(clock.monotonic())

    task = asyncio.ensure_future(loop())
    await clock.advance(2.0)
    task.cancel()
    assert turns == [0.5, 1.0, 1.5, 2.0]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.ensure_future(clock.sleep(1.0))
    await clock.advance(0.5)
    task.cancel()
    await clock.advance(1.0)
    assert task.cancelled()


async def test_the_system_clock_moves() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.01
