"""Leadership: contend for the lease, serve while it is held, step down at once when it is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

import structlog

from resihp_bus import Bus, BusError, Subscription
from resihp_chassis import Clock
from resihp_messages import Kind
from resihp_scheduler.decide import think
from resihp_scheduler.desk import Desk
from resihp_scheduler.metrics import SchedulerMetrics
from resihp_scheduler.progress import begin_if_started
from resihp_scheduler.relay import Relay
from resihp_scheduler.reports import Reports
from resihp_scheduler.requests import VERBS, responder
from resihp_scheduler.returns import welcome_all
from resihp_scheduler.routing import handler
from resihp_scheduler.settings import SchedulerSettings
from resihp_scheduler.slowness import listener
from resihp_scheduler.solver import Solver
from resihp_scheduler.submission import place_waiting
from resihp_scheduler.term import Term
from resihp_store import JobState, LeadershipLost, Store, StoreUnavailable, queries

log = structlog.get_logger(__name__)

DURABLES = (("scheduler-event", Kind.EVENT), ("scheduler-ack", Kind.ACK))
RETRY_S = 0.2
DRAIN_S = 2.0
"""At the end, the outbox may take this long to be published."""


class Leadership:
    """`run` until `stop`. `is_leader` and `contended` are for health and start-up."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        settings: SchedulerSettings,
        clock: Clock,
        metrics: SchedulerMetrics,
        solver: Solver,
        *,
        incarnation: str,
    ) -> None:
        self._store, self._bus, self._settings, self._clock = store, bus, settings, clock
        self._metrics, self._solver = metrics, solver
        self._incarnation = incarnation
        self._lease = store.lease(holder=incarnation, ttl_s=settings.lease_ttl_s)
        self._stopping = asyncio.Event()
        self.term: Term | None = None
        """The term that is being served."""
        self.database_error = ""
        """Why the lease could not be looked at; empty while the database answers."""

    @property
    def is_leader(self) -> bool:
        return self.term is not None and self.term.in_force()

    def stop(self) -> None:
        """Finish what is in progress and release the lease. Idempotent."""
        self._stopping.set()

    async def run(self, on_contended: Callable[[], None]) -> None:
        """`on_contended` is called once: when this process serves, or knows that another one leads."""
        told = False
        while not self._stopping.is_set():
            asked_s = self._clock.monotonic()
            token = await self._try_acquire()
            if token is not None:
                told = await self._serve(token, asked_s, None if told else on_contended) or told
                continue
            if not told:
                told = True
                on_contended()
            await self._pause(self._settings.lease_renew_s)

    async def _try_acquire(self) -> int | None:
        try:
            return await self._acquire()
        except StoreUnavailable as error:
            log.warning("database not available", error=str(error))
            return None

    async def _acquire(self) -> int | None:
        try:
            token = await self._lease.acquire()
        except StoreUnavailable as error:
            self.database_error = str(error)
            raise
        self.database_error = ""
        return token

    async def _serve(self, token: int, asked_s: float, on_contended: Callable[[], None] | None) -> bool:
        term = Term(
            store=self._store,
            bus=self._bus,
            settings=self._settings,
            clock=self._clock,
            metrics=self._metrics,
            incarnation=self._incarnation,
            token=token,
            renewed_s=asked_s,
            solver=self._solver,
        )
        log.info("leader", token=token)
        self.term = term
        self._metrics.terms.inc()
        self._metrics.leader.set(1)
        serving = asyncio.create_task(_Serving(term).run(self._stopping, on_contended or (lambda: None)))
        try:
            await self._renew_until_over(term, serving)
        finally:
            self.term = None
            self._metrics.leader.set(0)
            term_was_good = not term.deposed.is_set()
            await serving
            log.info("not leader any more", token=token)
        if self._stopping.is_set() and term_was_good:
            with contextlib.suppress(StoreUnavailable):
                await self._lease.release()
        return True

    async def _renew_until_over(self, term: Term, serving: asyncio.Task[None]) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        deposed = asyncio.create_task(term.deposed.wait())
        try:
            while not (serving.done() or stopping.done() or deposed.done()):
                await asyncio.wait(
                    {serving, stopping, deposed},
                    timeout=self._settings.lease_renew_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                await self._renew(term)
        finally:
            stopping.cancel()
            deposed.cancel()

    async def _renew(self, term: Term) -> None:
        if term.deposed.is_set():
            return
        asked_s = self._clock.monotonic()
        try:
            token = await self._acquire()
        except StoreUnavailable as error:
            log.warning("lease not renewed", error=str(error))
            if not term.in_force():
                term.deposed.set()
            return
        if token == term.token:
            term.renewed_s = asked_s
        else:  # somebody else leads, or did so in between
            term.deposed.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


class _Serving:
    """What a leader runs: relay, reports, consumers, requests."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._subscriptions: list[Subscription] = []

    async def run(self, stopping: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Until the term is over or the process stops. Cold start first, then new messages."""
        term = self._term
        relay, desk = Relay(term), Desk(partial(think, term), term.clock, term.deposed.set)
        term.wake = desk.wake
        works = (relay.run(), Reports(term).run(), self._housekeeping(), desk.run())
        background = [asyncio.create_task(work) for work in works]
        relaying = background[0]
        over = [asyncio.create_task(stopping.wait()), asyncio.create_task(term.deposed.wait())]
        starting = asyncio.create_task(self._start())
        try:
            await asyncio.wait({starting, *over, *background}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                on_ready()
                await asyncio.wait({*over, *background}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            starting.cancel()
            await asyncio.wait({starting})
            for subscription in self._subscriptions:
                await subscription.stop()
            if stopping.is_set() and term.in_force():
                relay.stop()  # an interrupted publish would be repeated by the next leader
                await asyncio.wait({relaying}, timeout=DRAIN_S)
            for task in (*background, *over):
                task.cancel()
            results = await asyncio.gather(*background, *over, return_exceptions=True)
        for result in results[: len(background)]:
            if isinstance(result, Exception):
                raise result

    async def _start(self) -> None:
        """Reload unfinished work, then subscribe. Tries again until it succeeds or is cancelled."""
        while True:
            try:
                await self._cold_start()
                await self._subscribe()
                return
            except LeadershipLost:
                self._term.deposed.set()
                return
            except (StoreUnavailable, BusError) as error:
                log.warning("start of the term is delayed", error=str(error))
                for subscription in self._subscriptions:
                    await subscription.stop()
                self._subscriptions.clear()
                await asyncio.sleep(RETRY_S)

    async def _cold_start(self) -> None:
        """Whatever the last leader left half done: the relay sends its outbox; jobs that can start are started."""
        term = self._term
        async with term.transaction() as work:
            await place_waiting(term, work)
        async with term.store.read() as connection:
            starting = await queries.jobs(connection, states=[JobState.STARTING])
            running = await queries.jobs(connection, states=[JobState.RUNNING])
        for job in starting:
            async with term.lock(job.job):
                await begin_if_started(term, job.job)
        await welcome_all(term)
        await term.solver.start()
        for job in running:
            term.wake(job.job)

    async def _housekeeping(self) -> None:
        """Forget old messages, now and then."""
        term, settings = self._term, self._term.settings
        while True:
            try:
                await term.store.prune(term.token, keep_s=settings.keep_messages_s)
            except LeadershipLost:
                term.deposed.set()
                return
            except StoreUnavailable as error:
                log.warning("database not available", error=str(error))
            await asyncio.sleep(settings.housekeeping_s)

    async def _subscribe(self) -> None:
        term = self._term
        handle = handler(term)
        for durable, kind in DURABLES:
            self._subscriptions.append(await term.bus.consume(durable, kind, handle))
        self._subscriptions.append(await term.bus.listen(Kind.SCORE, listener(term)))
        for verb, answer in VERBS.items():
            self._subscriptions.append(await term.bus.serve(verb, responder(term, answer)))
