"""Measures a job's constants on its healthy iterations, again when more of them are known."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from resihp_scheduler.aim import open_slow
from resihp_scheduler.calibration import Calibration, calibrate, describes_devices
from resihp_scheduler.situation import Situation, load
from resihp_scheduler.term import Term
from resihp_store import decisions, queries

log = structlog.get_logger(__name__)

ENOUGH = (8, 16, 32)
"""Healthy iterations of an epoch after which constants are measured (again)."""
UNDETECTED = 6
"""The newest iterations are left out: a slowness in them may not have been noticed yet."""


class Calibrator:
    """For the length of a term. Constants are kept in the database, so that the next leader has them."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._done: dict[str, tuple[int, int]] = {}
        """job -> (epoch, number of iterations) of the last measurement."""

    async def update(self, job: str) -> None:
        """Measure if enough healthy iterations have come since the last time."""
        newest = self._term.meter.newest_epoch(job)
        due = self._due(job, newest)
        if due is None:
            return
        self._done[job] = (newest, due)
        async with self._term.store.read() as connection:
            situation = await load(connection, job)
            if situation is None or not describes_devices(situation.spec):
                return
            if not await self._is_healthy(connection, situation, newest):
                return
        measured = await asyncio.to_thread(self._measure, situation)
        if measured is None:
            return
        async with self._term.lock(job), self._term.transaction() as work:
            control = await decisions.control(work.connection, job)
            await decisions.put_control(work, replace(control, calibration=measured.to_dict()))
        log.info("constants measured", job=job, epoch=newest, **measured.to_dict())

    def _due(self, job: str, epoch: int) -> int | None:
        """The number of iterations for which it is time, if it is."""
        count = self._term.meter.count(job, epoch) - UNDETECTED
        reached = max((n for n in ENOUGH if n <= count), default=None)
        if reached is None or (self._done.get(job, (0, 0)) >= (epoch, reached)):
            return None
        return reached

    async def _is_healthy(self, connection: queries.Connection, situation: Situation, epoch: int) -> bool:
        """Nobody is slow, nothing is under way, and the iterations are those of the plan in force."""
        in_force = situation.in_force
        if in_force is None or in_force.epoch != epoch or situation.open is not None or situation.speeds:
            return False
        return not open_slow(await queries.incidents(connection, job_name=situation.name, only_open=True))

    def _measure(self, situation: Situation) -> Calibration | None:
        plan = situation.plan_in_force()
        rows = self._term.meter.complete(situation.name, plan.epoch, plan.active)
        return calibrate(situation.spec, plan, list(rows.values())[:-UNDETECTED])
