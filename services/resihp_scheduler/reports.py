"""Iteration reports -> one summary row per committed iteration, written in batches.

Reports are read by position: the position is committed together with the summaries, so that a crash neither loses nor
repeats one, although nothing is written per report.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncGenerator
from dataclasses import replace

import structlog

from resihp_bus import BusError, Stored
from resihp_messages import Kind
from resihp_messages.report import IterationReport
from resihp_scheduler.recalibrate import Calibrator
from resihp_scheduler.term import Term
from resihp_store import (
    IterationRecord,
    LeadershipLost,
    ReconfigurationStatus,
    StoreUnavailable,
    UnitOfWork,
    queries,
)

log = structlog.get_logger(__name__)

CURSOR = "reports"
MAX_WAITING = 2000
"""Summaries that wait for the next flush; reading pauses beyond."""
MEASURED = range(3, 51)
"""Iterations of an epoch (after its first, which was redone) over which its throughput is measured."""
RETRY_S = 0.5


class Reports:
    """`run` for the length of a term."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._waiting: dict[tuple[str, int], IterationRecord] = {}
        self._sequence = 0
        self._flushed = 0
        self._settled: set[tuple[str, int]] = set()
        """(job, epoch) whose throughput needs no further look."""
        self._full = asyncio.Event()
        self._calibrator = Calibrator(term)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._write())

    async def _read(self) -> None:
        """Follow the stream; a bus that is away is waited for."""
        while not self._term.deposed.is_set():
            try:
                async with self._term.store.read() as connection:
                    after = max(self._sequence, await queries.cursor(connection, CURSOR))
                await self._follow(after)
            except (BusError, StoreUnavailable) as error:
                log.warning("reports are not read", error=str(error))
            await asyncio.sleep(RETRY_S)

    async def _follow(self, after: int) -> None:
        reports = self._term.bus.replay(Kind.REPORT, after_sequence=after)
        try:
            async for stored in reports:
                self.add(stored)
                while len(self._waiting) >= MAX_WAITING:
                    self._full.set()
                    await asyncio.sleep(self._term.settings.report_flush_s / 4)
        finally:
            if isinstance(reports, AsyncGenerator):  # closed here, not whenever it is collected
                await reports.aclose()

    def add(self, stored: Stored) -> None:
        """Merge one node's report into its iteration's summary."""
        envelope, body = stored.envelope, stored.envelope.body
        self._sequence = stored.sequence
        if not isinstance(body, IterationReport) or not body.ranks:
            return
        self._term.meter.add(envelope.job, envelope.epoch, body)
        key = (envelope.job, body.iteration)
        row = IterationRecord(
            job=envelope.job,
            iteration=body.iteration,
            epoch=envelope.epoch,
            loss=body.loss,
            step_s=max(body.step_s),
            tokens=body.global_tokens,
            samples_expected=body.samples_expected,
            samples_once=body.samples_once,
            rss_bytes=max(body.rss_bytes),
        )
        old = self._waiting.get(key)
        self._waiting[key] = row if old is None else merge(old, row)

    async def _write(self) -> None:
        settings = self._term.settings
        while not self._term.deposed.is_set():
            try:
                async with asyncio.timeout(settings.report_flush_s):
                    await self._full.wait()
            except TimeoutError:
                pass
            self._full.clear()
            try:
                await self.flush()
            except LeadershipLost:
                self._term.deposed.set()
            except StoreUnavailable as error:
                log.warning("database not available", error=str(error))

    async def flush(self) -> None:
        """Write what waits, with the position up to which it was read."""
        if self._sequence == self._flushed:
            return
        waiting, sequence = self._waiting, self._sequence
        self._waiting = {}
        try:
            async with self._term.transaction() as work:
                await self._store(work, list(waiting.values()))
                await work.set_cursor(CURSOR, sequence)
        except BaseException:
            # Not written: back into the queue, under what has come meanwhile.
            for key, row in waiting.items():
                newer = self._waiting.get(key)
                self._waiting[key] = row if newer is None else merge(row, newer)
            raise
        self._flushed = sequence
        for job in {row.job for row in waiting.values()}:
            await self._calibrator.update(job)
        self._term.metrics.summaries.inc(len(waiting))

    async def _store(self, work: UnitOfWork, rows: list[IterationRecord]) -> None:
        for job in sorted({row.job for row in rows}):
            if await queries.job(work.connection, job) is None:
                continue  # a job of another database on the same bus
            mine = [row for row in rows if row.job == job]
            await work.put_iterations(mine)
            await work.set_committed(job, max(row.iteration for row in mine))
            for epoch in sorted({row.epoch for row in mine}):
                await self._measure(work, job, epoch)

    async def _measure(self, work: UnitOfWork, job: str, epoch: int) -> None:
        """Achieved throughput of the change that led to `epoch`."""
        if (job, epoch) in self._settled:
            return
        rows = await queries.iterations(work.connection, job, epoch=epoch, limit=MEASURED.stop)
        if len(rows) - 1 < MEASURED.start:
            return
        changes = await queries.reconfigurations(
            work.connection, job_name=job, status=ReconfigurationStatus.APPLIED, from_epoch=epoch
        )
        for change in changes:
            if change.new_epoch == epoch:
                achieved = statistics.median(row.tokens_per_s for row in rows[1:])
                await work.set_reconfiguration(change.id, achieved_tokens_per_s=achieved)
                if len(rows) >= MEASURED.stop:
                    self._settled.add((job, epoch))


def merge(old: IterationRecord, new: IterationRecord) -> IterationRecord:
    """Two nodes' views of one iteration."""
    return replace(
        old,
        epoch=max(old.epoch, new.epoch),
        loss=old.loss if new.loss is None else new.loss,
        step_s=max(old.step_s, new.step_s),
        rss_bytes=max(old.rss_bytes or 0, new.rss_bytes or 0) or None,
    )
