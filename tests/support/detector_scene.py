"""A detector on a bus in memory and a clock that stands still, and the world around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from resihp_bus import MemoryBroker, MemoryBus
from resihp_chassis import ManualClock
from resihp_detector.detector import Detector
from resihp_detector.settings import DetectorSettings
from support.detection import Surroundings
from support.waiting import wait_for


@dataclass
class Scene:
    broker: MemoryBroker
    clock: ManualClock
    world: Surroundings

    @contextlib.asynccontextmanager
    async def detector(
        self, incarnation: str = "d1", *, runs: bool = True, **settings: float
    ) -> AsyncIterator[Detector]:
        bus = MemoryBus(self.broker, "detector")
        await bus.connect()
        detector = Detector(DetectorSettings(**settings), bus, self.clock, incarnation=incarnation)  # type: ignore[arg-type]
        await detector.start()
        task = asyncio.create_task(detector.run()) if runs else None
        try:
            yield detector
        finally:
            if task is not None:
                task.cancel()
            await bus.close()

    async def pass_time(self, seconds: float, *beating: str, ranks: tuple[int, ...] = (0, 1)) -> None:
        """Time goes by in steps of a beat; these nodes beat."""
        for _ in range(round(seconds / 0.25)):
            await self.clock.advance(0.25)
            for node in beating:
                await self.world.beat(*ranks, node=node, incarnation=f"{node}-a1")
            await self.drained()

    async def drained(self) -> None:
        """Everything published so far is delivered and handled."""
        for _ in range(30):
            await asyncio.sleep(0)


async def heard(scene: Scene, body_class: type, num: int = 1, *, job: str | None = None) -> list:  # type: ignore[type-arg]
    await wait_for(lambda: len(scene.world.of(body_class, job=job)) >= num, 5.0, what=body_class.__name__)
    return scene.world.of(body_class, job=job)
