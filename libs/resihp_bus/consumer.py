"""A durable consumer: stored messages in order, one at a time, at least once, across restarts of either side.

Mechanism: a pull consumer with explicit acknowledgement. The first message is fetched with a waiting pull, so that it
arrives at once; if more are stored, up to `batch` are fetched together. The server is told about every message in
progress, so that it never delivers one again while it waits its turn or a retry. Whenever the connection or this
process is new, the consumer is *rewound*: delivered but unacknowledged messages are delivered again first, in order.
A killed server forgets the last acknowledgements; what this process has settled already is then acknowledged silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from resihp_bus.delivery import Decoder, log, note_rejected, settle
from resihp_bus.link import Link
from resihp_bus.port import Ack, BusUnavailable, Handler
from resihp_bus.stats import BusStats
from resihp_bus.streams import ensure_streams
from resihp_bus.tasks import being_cancelled
from resihp_messages import MalformedMessage

FETCH_S = 1.0
"""A pull that is in flight while the server restarts waits this long at most."""
INSPECT_S = 5.0
"""An idle consumer looks this often whether it still exists: the server may have lost it."""
_RESET_SINCE = (2, 14)
_COMPARED = ("filter_subject", "ack_wait", "max_ack_pending")


@dataclass(frozen=True)
class ConsumerSpec:
    """What to consume under which durable name."""

    durable: str
    stream: str
    filter_subject: str
    batch: int


class DurableConsumer:
    """Runs from `start` until `stop`. One at a time per durable name."""

    def __init__(self, link: Link, spec: ConsumerSpec, handler: Handler, stats: BusStats) -> None:
        self._link = link
        self._spec = spec
        self._handler = handler
        self._stats = stats
        self._decode = Decoder(stats)
        self._held: deque[Msg] = deque()
        self._last_sequence = 0
        self._stream_created: datetime | None = None
        self._generation = -1
        self._stopping = asyncio.Event()
        self._fetching: asyncio.Task[list[Msg]] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Create or find the consumer, then deliver in the background. Raises nats errors if that fails."""
        sub = await self._bind()
        self._link.on_change.append(self._interrupt)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(sub)), loop.create_task(self._keep_alive())]

    async def stop(self) -> None:
        """Stop fetching and wait until the handler in progress is done. Idempotent."""
        self._stopping.set()
        if self._interrupt in self._link.on_change:
            self._link.on_change.remove(self._interrupt)
        self._interrupt()
        others = {task for task in self._tasks if task is not asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    # --- the loop -----------------------------------------------------------------------------------------------

    async def _run(self, sub: JetStreamContext.PullSubscription) -> None:
        idle_since = time.monotonic()
        while not (self._stopping.is_set() or being_cancelled()):
            if not self._link.up:
                if self._link.closed:
                    break
                await self._pause(0.02)
                continue
            try:
                if self._generation != self._link.generation:
                    await self._unsubscribe(sub)
                    sub = await self._bind()
                messages = await self._fetch(sub)
                if messages:
                    await self._deliver(messages)
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > INSPECT_S:
                    await self._inspect()
                    idle_since = time.monotonic()
            except (nats.errors.Error, BusUnavailable, OSError, TimeoutError) as error:
                self._generation = -1  # bind anew: the consumer may be gone
                silent = self._link.rate.allow(f"consumer {self._spec.durable}")
                if silent is not None:
                    log.warning("consumer interrupted", durable=self._spec.durable, error=str(error) or repr(error))
                await self._pause(0.1)
        await self._unsubscribe(sub)

    async def _fetch(self, sub: JetStreamContext.PullSubscription) -> list[Msg]:
        """Messages in order; empty after an idle second or when interrupted."""
        started = time.monotonic()
        self._fetching = asyncio.get_running_loop().create_task(sub.fetch(1, timeout=FETCH_S))
        try:
            await asyncio.wait({self._fetching})
            if self._fetching.cancelled():
                return []
            messages = self._fetching.result()
        except TimeoutError:
            if time.monotonic() - started < FETCH_S / 2 and not self._stopping.is_set():
                await self._pause(0.05)  # the server answered "not now": do not ask in a tight loop
            return []
        finally:
            self._fetching = None
        waiting = min(messages[0].metadata.num_pending or 0, self._spec.batch - 1)
        if waiting > 0:
            with contextlib.suppress(TimeoutError):  # purged or expired in between
                messages += await sub.fetch(waiting, timeout=FETCH_S)
        return messages

    async def _deliver(self, messages: list[Msg]) -> None:
        self._held.extend(messages)
        try:
            while self._held and not self._stopping.is_set():
                message = self._held[0]
                settled = await self._settle(message)
                self._held.popleft()
                if not settled:
                    break
                self._last_sequence = max(self._last_sequence, message.metadata.sequence.stream)
        finally:
            self._held.clear()  # what is left is delivered again after the next bind

    async def _settle(self, message: Msg) -> bool:
        if message.metadata.sequence.stream <= self._last_sequence:
            await message.ack()
            return True
        decoded = self._decode(message.data, message.subject)
        if isinstance(decoded, MalformedMessage):
            await self._reject(message, str(decoded))
            return True
        outcome = await settle(
            decoded,
            self._handler,
            stats=self._stats,
            max_tries=self._link.settings.max_tries,
            earlier_tries=(message.metadata.num_delivered or 1) - 1,
            pause=self._pause,
        )
        if outcome is None:
            return False
        if isinstance(outcome, Ack):
            await message.ack()
        else:
            await self._reject(message, outcome.reason)
        return True

    async def _reject(self, message: Msg, reason: str) -> None:
        await message.term()
        note_rejected(self._stats, reason, durable=self._spec.durable, source=message.subject)

    async def _pause(self, seconds: float) -> bool:
        """Sleep; False if the subscription is being stopped."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False

    async def _keep_alive(self) -> None:
        """Tell the server that held messages are in progress, so that it does not deliver them again."""
        while await self._pause(self._link.settings.ack_wait_s / 3) and not being_cancelled():
            for message in tuple(self._held):
                if not self._link.up:
                    break
                try:
                    await message.in_progress()
                except nats.errors.Error:
                    continue  # settled in between, or the connection is going down: both are seen elsewhere

    def _interrupt(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()

    # --- server-side state --------------------------------------------------------------------------------------

    async def _bind(self) -> JetStreamContext.PullSubscription:
        """Make the consumer exist, rewind it, and subscribe."""
        await self._link.wait_up(self._link.settings.api_timeout_s)
        generation = self._link.generation
        js, spec = self._link.js, self._spec
        await self._know_stream(js)
        info = await self._find_or_create(js)
        if info.num_ack_pending:
            await self._rewind(js)
        sub = await js.pull_subscribe_bind(spec.durable, stream=spec.stream)
        self._generation = generation
        return sub

    async def _find_or_create(self, js: JetStreamContext) -> ConsumerInfo:
        spec = self._spec
        wanted = ConsumerConfig(
            name=spec.durable,
            durable_name=spec.durable,
            filter_subject=spec.filter_subject,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._link.settings.ack_wait_s,
            max_deliver=-1,
            max_ack_pending=spec.batch,
        )
        try:
            info: ConsumerInfo = await js.consumer_info(spec.stream, spec.durable)
        except NotFoundError:
            if self._last_sequence:
                log.warning("consumer had vanished", durable=spec.durable, continues_after=self._last_sequence)
                wanted.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
                wanted.opt_start_seq = self._last_sequence + 1
            info = await js.add_consumer(spec.stream, wanted)
            return info
        if any(getattr(info.config, key) != getattr(wanted, key) for key in _COMPARED):
            wanted.deliver_policy = info.config.deliver_policy
            wanted.opt_start_seq = info.config.opt_start_seq
            info = await js.add_consumer(spec.stream, wanted)
        return info

    async def _know_stream(self, js: JetStreamContext) -> None:
        """Sequences mean nothing in a stream that was created anew (memory streams are, after a restart)."""
        try:
            created = (await js.stream_info(self._spec.stream)).created
        except NotFoundError:
            await ensure_streams(js, self._link.settings)
            created = (await js.stream_info(self._spec.stream)).created
        if created != self._stream_created:
            self._stream_created = created
            self._last_sequence = 0

    async def _rewind(self, js: JetStreamContext) -> None:
        """Deliver unacknowledged messages again, before all later ones."""
        version = self._link.client.connected_server_version
        if (version.major, version.minor) >= _RESET_SINCE:
            try:
                await js.reset_consumer(self._spec.stream, self._spec.durable)
                return
            except APIError as error:
                log.info("consumer reset refused", durable=self._spec.durable, error=str(error))
        # an older server: once their ack_wait is over, they come first
        await self._pause(self._link.settings.ack_wait_s + 0.1)

    async def _inspect(self) -> None:
        """Watchdog of an idle consumer: gone, or stuck on messages that nobody holds -> bind anew."""
        info = await self._link.js.consumer_info(self._spec.stream, self._spec.durable)
        if info.num_ack_pending:
            self._generation = -1

    async def _unsubscribe(self, sub: JetStreamContext.PullSubscription) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):  # the connection is gone, and the subscription with it
            await sub.unsubscribe()
