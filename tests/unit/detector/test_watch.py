"""The watch over the report stream, on a bus in memory: exactly once, whoever is killed when."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from resihp_bus import MemoryBroker, MemoryBus
from resihp_chassis import ManualClock
from resihp_detector.detector import Detector
from resihp_detector.settings import DetectorSettings
from resihp_detector.watch import HealthWatch
from resihp_messages import Kind, event
from support.plans import demo_plan
from support.telemetry import PlayedJob
from support.waiting import wait_for


class World:
    """A broker, a job that reports to it, and detectors that come and go."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.clock = ManualClock(1000.0)
        self.job = PlayedJob(demo_plan())
        self.bus = MemoryBus(self.broker, "world")

    async def begin(self) -> None:
        await self.bus.connect()
        await self.job.announce(self.bus)

    async def go_on(self, iterations: int) -> None:
        for _ in range(iterations):
            await self.job.publish(self.bus, self.job.next_iteration())

    @contextlib.asynccontextmanager
    async def detector(self, incarnation: str = "d1", **settings: int) -> AsyncIterator[HealthWatch]:
        """Killed at the end: no farewell, no last snapshot."""
        bus = MemoryBus(self.broker, "detector")
        await bus.connect()
        chosen = DetectorSettings(**settings)  # type: ignore[arg-type]
        detector = Detector(chosen, bus, self.clock, incarnation=incarnation)
        watch = HealthWatch(chosen, bus, self.clock, detector.say, detector.wrap, detector.picture.scale_of)
        await detector.start()
        await watch.start()
        task = asyncio.create_task(watch.run())
        try:
            yield watch
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await bus.close()

    async def judged(self, watch: HealthWatch) -> None:
        """All reports that are stored have been judged."""
        await wait_for(lambda: watch.position == len(self.broker.streams[Kind.REPORT]), 20.0)

    def said(self, *classes: type) -> list[tuple[str, tuple[int, ...]]]:
        """(event, ranks) in the stream, suspicions left out."""
        return [
            (type(e.body).__name__, e.body.verdict.ranks)
            for e in self.broker.stored(Kind.EVENT)
            if isinstance(e.body, event._FailureEvent) and not isinstance(e.body, event.DeviceSuspected)
        ]


async def test_each_of_five_faults_is_said_once_although_the_detector_is_killed_twenty_times() -> None:
    world, rng = World(), random.Random(3)
    await world.begin()
    kills = sorted(rng.sample(range(1, 130), 20))
    faults = {30: (5, 0.5), 45: (2, 0.7), 60: (7, 0.8), 75: (0, 0.5), 90: (3, 0.6)}
    i = 0
    for incarnation, stop in enumerate([*kills, 130]):
        async with world.detector(f"d{incarnation}") as watch:
            while i < stop:
                i += 1
                if i in faults:
                    rank, p = faults[i]
                    world.job.speed[rank] = p
                world.job.speed = {r: p for r, p in world.job.speed.items() if i < 110}
                await world.go_on(1)
                await world.clock.advance(1.0)
                for _ in range(rng.randrange(6)):  # it gets some way
                    await asyncio.sleep(0)
            if stop == 130:
                await world.judged(watch)
    expected = Counter([("DeviceSlow", (r,)) for r, _ in faults.values()])
    assert Counter(world.said()) == expected + Counter([("DeviceRecovered", (r,)) for r, _ in faults.values()])
    slow = {e.body.verdict.ranks: e for e in world.broker.stored(Kind.EVENT) if isinstance(e.body, event.DeviceSlow)}
    for start, (rank, p) in faults.items():
        evidence = slow[rank,].body.evidence
        assert start <= evidence["first_iteration"] <= start + 1
        assert evidence["iteration"] <= start + 6
        assert slow[rank,].body.verdict.p == pytest.approx(p, rel=0.05)


async def test_scores_are_published_for_every_iteration_by_each_partition() -> None:
    world = World()
    await world.begin()
    async with (
        world.detector("d0", num_partitions=2) as first,
        world.detector("d1", num_partitions=2, partition=1) as two,
    ):
        await world.go_on(30)
        world.job.speed[5] = 0.5
        await world.go_on(6)
        await world.judged(first)
        await world.judged(two)
    scores = [e.body for e in world.broker.stored(Kind.SCORE)]
    per_rank = Counter((s.iteration, rank) for s in scores for rank in s.ranks)  # type: ignore[attr-defined]
    assert per_rank == Counter((i, rank) for i in range(1, 37) for rank in range(8))
    newest = {rank: s.p[n] for s in scores for n, rank in enumerate(s.ranks)}  # type: ignore[attr-defined]
    assert newest[5] == pytest.approx(0.5, rel=0.03)
    assert world.said() == [("DeviceSlow", (5,))]


async def test_a_slow_device_that_stops_is_one_incident() -> None:
    world = World()
    await world.begin()
    async with world.detector() as watch:
        await world.go_on(29)
        world.job.speed[5] = 0.5
        await world.go_on(5)
        await world.judged(watch)
        exited = event.WorkerExited(node="n1", rank=5, pid=9, exit_code=-9, iteration=35, detect_s=0.01)
        await world.bus.publish(world.job.envelope(exited, "exit-5"), detail="WorkerExited")  # type: ignore[arg-type]
        await wait_for(lambda: ("WorkerLost", (5,)) in world.said())
    ids = {e.correlation_id for e in world.broker.stored(Kind.EVENT) if isinstance(e.body, event._FailureEvent)}
    assert len(ids) == 1


async def test_operators_change_how_slow_is_slow_and_a_restart_remembers_it() -> None:
    world = World()
    await world.begin()

    async def set_scale(**thresholds: float) -> None:
        body = event.ModeChanged(mode="act", thresholds=thresholds)
        await world.bus.publish(world.job.envelope(body, f"mode-{len(thresholds)}"), detail="ModeChanged")  # type: ignore[arg-type]

    await world.go_on(29)
    await set_scale(detect_scale=5.0)
    for incarnation in ("d1", "d2"):
        async with world.detector(incarnation) as watch:
            world.job.speed[5] = 0.8
            await world.go_on(15)
            await world.judged(watch)
            if incarnation == "d2":
                assert world.said() == []
                await set_scale()  # the default again
                await wait_for(lambda w=watch: w._scale_of("demo") == 1.0)
                await world.go_on(8)
                await world.judged(watch)
    assert world.said() == [("DeviceSlow", (5,))]


async def test_a_second_run_of_the_same_job_begins_anew() -> None:
    world = World()
    await world.begin()
    async with world.detector() as watch:
        await world.go_on(29)
        world.job.speed[5] = 0.5
        await world.go_on(5)
        late = world.job.next_iteration()
        world.job = PlayedJob(demo_plan(), reconfiguration_id="another", speed={5: 0.5}, seed=9)
        await world.job.announce(world.bus)
        await world.go_on(5)
        old = PlayedJob(demo_plan())
        await old.publish(world.bus, late)
        await world.go_on(35)
        await world.judged(watch)
    # In the second run rank 5 is slow from the start: four devices are enough to see that.
    assert world.said() == [("DeviceSlow", (5,)), ("DeviceSlow", (5,))]


async def test_reports_of_a_plan_that_nobody_knows_are_counted_and_passed_over() -> None:
    world = World()
    await world.bus.connect()
    async with world.detector() as watch:
        await world.go_on(3)
        await world.judged(watch)
        assert watch.num_unknown == watch.num_reports == 6
    assert world.said() == []


async def test_a_snapshot_that_cannot_be_read_is_no_reason_to_stop() -> None:
    world = World()
    await world.begin()
    await world.bus.keep("detector-0-of-1", b"\xc1 nonsense")
    async with world.detector() as watch:
        await world.go_on(29)
        world.job.speed[5] = 0.5
        await world.go_on(5)
        await world.judged(watch)
    assert world.said() == [("DeviceSlow", (5,))]
