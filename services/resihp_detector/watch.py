"""Reads the report stream from where the last snapshot stands, judges, and says what it concludes.

Exactly once: what is concluded depends only on the order of the stream and carries an id derived from it; a snapshot
names the position up to which everything has been said. A killed detector reads again from there and comes to the same
messages, which the bus and the list of what has been said recognise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgpack
import structlog

from resihp_bus.port import Bus, BusUnavailable, Stored
from resihp_chassis import Clock
from resihp_detect.healthy_time import prepare
from resihp_detector.health import JobHealth, config_for
from resihp_detector.layouts import Epoch, Layouts
from resihp_detector.settings import DetectorSettings
from resihp_detector.verdicts import Conclusion, derived_id
from resihp_messages import AnyEnvelope, Kind
from resihp_messages.report import IterationReport

log = structlog.get_logger(__name__)

_VERSION = 3
_RETRY_S = 0.2
_FIRST_S = 1.0
_ASK_AGAIN_S = 30.0
_MAX_JOBS = 64
"""Jobs whose reports have ended are forgotten in the order of their last ones."""


class HealthWatch:
    """Slow devices, corrupted state: from reports to events and scores."""

    def __init__(
        self,
        settings: DetectorSettings,
        bus: Bus,
        clock: Clock,
        say: Callable[[Conclusion], Awaitable[None]],
        wrap: Callable[..., AnyEnvelope],
        scale_of: Callable[[str], float | None] = lambda job: None,
    ) -> None:
        """`scale_of`: a job's `detect_scale` as its operators have set it; None if they are not known to have said
        anything, so that a snapshot's holds."""
        self._settings, self._bus, self._clock, self._say, self._wrap = settings, bus, clock, say, wrap
        self._scale_of = scale_of
        self._layouts = Layouts(bus)
        self._jobs: dict[str, JobHealth] = {}
        self._unknown: dict[str, float] = {}
        """Epochs without a plan -> when to ask again."""
        self.position = 0
        """In the stream: everything up to there is judged and said."""
        self._kept_at = 0
        self._turn = asyncio.Lock()
        self._is_between = True
        """False while a report is judged, and for good if that was cut short: what it changed is not to be kept."""
        self._name = f"detector-{settings.partition}-of-{settings.num_partitions}"
        self.num_reports = 0
        self.num_unread = 0
        """Reports in the stream that are not judged yet, as of the last snapshot's turn."""
        self.num_unknown = 0
        """Reports of epochs whose plan is in no stored command."""

    def is_mine(self, job: str, group: str) -> bool:
        """Whether this process judges the group: peers meet in one process."""
        digest = hashlib.sha256(f"{job}\x1f{group}".encode()).digest()
        return int.from_bytes(digest[:4], "big") % self._settings.num_partitions == self._settings.partition

    async def start(self) -> None:
        """Go on from the last snapshot, if there is a usable one; else from the beginning of the stream, with the same
        conclusions."""
        try:
            raw = await self._bus.kept(self._name)
        except BusUnavailable as error:
            log.warning("snapshot_not_read", error=str(error))
            return
        if raw is None:
            return
        try:
            self._restore(msgpack.unpackb(raw, strict_map_key=False))
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            log.warning("snapshot_unusable", error=str(error))  # the stream holds enough to learn anew
            self._jobs, self.position = {}, 0

    async def run(self) -> None:
        """Judge, and take snapshots, until cancelled."""
        loop = asyncio.get_running_loop()
        preparing = loop.create_task(asyncio.to_thread(prepare))  # learning needs it, reading does not
        keeping = loop.create_task(self._keep_for_ever())
        try:
            async with contextlib.aclosing(self._bus.replay(Kind.REPORT, after_sequence=self.position)) as reports:
                async for stored in reports:
                    async with self._turn:
                        await self.take(stored)
        finally:
            keeping.cancel()
            preparing.cancel()

    async def _keep_for_ever(self) -> None:
        """Soon for the first time: a detector that is killed again and again must get on all the same."""
        pause_s = min(_FIRST_S, self._settings.snapshot_period_s)
        while True:
            await self._clock.sleep(pause_s)
            async with self._turn:  # between two reports: what is kept has been said
                await self.keep()
            with contextlib.suppress(BusUnavailable):
                self.num_unread = max(0, await self._bus.last_sequence(Kind.REPORT) - self.position)
            pause_s = self._settings.snapshot_period_s

    async def take(self, stored: Stored) -> None:
        """One report: judged, said, scored."""
        body = stored.envelope.body
        self._is_between = False
        if isinstance(body, IterationReport):
            await self._take(stored.envelope, body)
        self.position = stored.sequence
        self._is_between = True

    async def keep(self) -> None:
        """Take a snapshot, if there is news. A bus that is down is no error: the old one is as good, only older."""
        if self.position == self._kept_at or not self._is_between:
            return
        try:
            await self._bus.keep(self._name, msgpack.packb(self._snapshot()))
        except BusUnavailable as error:
            log.warning("snapshot_delayed", error=str(error))
            return
        self._kept_at = self.position

    # --- one report -----------------------------------------------------------------------------------------------

    async def _take(self, envelope: AnyEnvelope, report: IterationReport) -> None:
        self.num_reports += 1
        epoch = await self._epoch(envelope, report)
        if epoch is None:
            return
        health = self._jobs.pop(envelope.job, None)
        if health is None or not (health.continues(epoch) or health.is_past(epoch)):
            health = JobHealth(epoch, config_for(report), self.is_mine, before=health)
        self._jobs[envelope.job] = health
        while len(self._jobs) > _MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        if health.is_past(epoch):
            return
        if (scale := self._scale_of(envelope.job)) is not None and scale != health.scale:
            log.info("thresholds_changed", job=envelope.job, detect_scale=scale)
            health.tune(scale)
        for conclusion in health.take(epoch, report):
            await self._persistently(partial(self._say, conclusion))
        self._score(health)

    async def _epoch(self, envelope: AnyEnvelope, report: IterationReport) -> Epoch | None:
        key = f"{envelope.job}/{report.reconfiguration_id or envelope.epoch}"
        if self._clock.monotonic() < self._unknown.get(key, -math.inf):
            self.num_unknown += 1
            return None
        found: list[Epoch | None] = []

        async def look() -> None:
            found.append(await self._layouts.find(envelope.job, envelope.epoch, report.reconfiguration_id))

        await self._persistently(look)
        if found[-1] is None:
            log.warning(
                "plan_unknown", job=envelope.job, epoch=envelope.epoch, reconfiguration=report.reconfiguration_id
            )
            self._unknown[key] = self._clock.monotonic() + _ASK_AGAIN_S
            self.num_unknown += 1
        return found[-1]

    async def _persistently(self, act: Callable[[], Awaitable[None]]) -> None:
        """Until the bus is back: the next report must not be judged before this one's verdicts are stored."""
        while True:
            try:
                await act()
                return
            except BusUnavailable as error:
                log.warning("verdict_delayed", error=str(error))
                await asyncio.sleep(_RETRY_S)

    def _score(self, health: JobHealth) -> None:
        scores = health.new_scores()
        if scores is None or not scores.ranks:
            return
        number, reconfiguration_id = health.place
        message_id = derived_id("score", health.job, reconfiguration_id, scores.iteration, self._name)
        envelope = self._wrap(scores, job=health.job, epoch=number, message_id=message_id)
        self._bus.publish_soon(envelope, detail="HealthScores")

    # --- snapshots ------------------------------------------------------------------------------------------------

    def _snapshot(self) -> dict[str, Any]:
        jobs = {job: health.snapshot() for job, health in self._jobs.items()}
        return {"version": _VERSION, "position": self.position, "jobs": jobs}

    def _restore(self, state: Any) -> None:
        if state["version"] != _VERSION:
            raise ValueError(f"snapshot of version {state['version']}, expected {_VERSION}")
        self._jobs = {job: JobHealth.restored(job, known, self.is_mine) for job, known in state["jobs"].items()}
        self.position = self._kept_at = int(state["position"])
        log.info("snapshot_restored", position=self.position, jobs=len(self._jobs))
