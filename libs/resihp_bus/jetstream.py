"""The bus on NATS JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.js.api import Header
from nats.js.errors import APIError, BadRequestError, NoStreamResponseError

from resihp_bus import shelf
from resihp_bus.answer import answer
from resihp_bus.consumer import ConsumerSpec, DurableConsumer
from resihp_bus.delivery import Decoder, log
from resihp_bus.link import Interrupted, Link
from resihp_bus.mailbox import Mailbox
from resihp_bus.outbound import Outbound
from resihp_bus.port import BusRefused, BusUnavailable, Handler, Listener, Responder, Stored, Subscription
from resihp_bus.replay import Replay
from resihp_bus.settings import JetStreamSettings
from resihp_bus.stats import BusStats
from resihp_bus.streams import ensure_streams
from resihp_messages import AnyEnvelope, Kind, MalformedMessage, decode, encode, pattern, stream_of, subject

T = TypeVar("T")
_STORED = frozenset({Kind.EVENT, Kind.COMMAND, Kind.ACK, Kind.REPORT, Kind.SCORE})


class _Stoppable(Protocol):
    async def stop(self) -> None: ...


class _Live:
    """A core NATS subscription whose messages are handled one at a time; made again when the client is replaced."""

    def __init__(self, link: Link, to: str, mailbox: Mailbox[Msg]) -> None:
        self._link = link
        self._to = to
        self._mailbox = mailbox
        self._sub: NatsSubscription | None = None

    async def start(self) -> None:
        """When this returns, the server knows the subscription."""

        async def receive(message: Msg) -> None:
            self._mailbox.put(message)

        self._sub = await self._link.client.subscribe(self._to, cb=receive)
        await self._link.client.flush()
        if self.start not in self._link.on_replaced:
            self._link.on_replaced.append(self.start)

    async def stop(self) -> None:
        if self.start in self._link.on_replaced:
            self._link.on_replaced.remove(self.start)
        if self._sub is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._sub.unsubscribe()
        await self._mailbox.stop()


class JetStreamBus:
    """`Bus` on a NATS server with JetStream (port.Bus states the promises).

    `name` identifies the process to the server and prefixes its inboxes (`_INBOX_<name>`), so that permissions can keep
    others from reading its replies. Use from one event loop; construct inside or outside of it.
    """

    def __init__(self, settings: JetStreamSettings, name: str) -> None:
        self.settings = settings
        self.name = name
        self.stats = BusStats()
        self._link: Link | None = None
        self._outbound: Outbound | None = None
        self._running: list[_Stoppable] = []
        self._replays: set[Replay] = set()
        self._closed = False

    # --- connection ---------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Raises `BusUnavailable` (no server in time) or `BusRefused` (credentials, no JetStream, no room)."""
        link = Link(self.settings, self.name, self.stats)
        await link.connect()
        self._link = link
        self._closed = False
        self._outbound = Outbound(
            self._send_core, lambda: link.up, stats=self.stats, limit=self.settings.outbound_limit
        )
        link.on_change.append(self._outbound.wake)

    async def close(self) -> None:
        if self._closed or self._link is None:
            return
        self._closed = True
        for replay in tuple(self._replays):
            replay.stop()
        for running in self._running:
            await running.stop()
        self._running.clear()
        if self._outbound is not None:
            await self._outbound.stop(timeout_s=1.0)
        await self._link.close()

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.up

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Callbacks after each connect and disconnect."""
        return self._require().on_change

    def _require(self) -> Link:
        if self._link is None or self._closed:
            raise BusUnavailable(f"bus {self.settings.shown_url}: connect() was not called or the bus is closed")
        return self._link

    # --- publishing ---------------------------------------------------------------------------------------------

    async def publish(self, envelope: AnyEnvelope, *, detail: str, timeout_s: float = 2.0) -> None:
        link = self._require()
        kind = type(envelope.body).kind
        to, raw = subject(envelope.job, kind, detail), encode(envelope)
        if kind in _STORED:
            await self._publish_stored(link, to, raw, envelope.message_id, stream_of(kind).name, timeout_s)
        else:
            if not link.up:
                raise BusUnavailable(f"bus {self.settings.shown_url} is not connected")
            try:
                await link.client.publish(to, raw)
            except nats.errors.Error as error:
                raise BusUnavailable(f"{to}: {error}") from error
        self.stats.published += 1

    async def _publish_stored(
        self, link: Link, to: str, raw: bytes, message_id: str, stream: str, timeout_s: float
    ) -> None:
        """Publish until acknowledged, always with the same id: a message that was stored unseen is stored once."""
        deadline = time.monotonic() + timeout_s
        headers: dict[str, str] = {Header.MSG_ID: message_id}
        last: Exception | None = None
        while (left := deadline - time.monotonic()) > 0:
            await link.wait_up(left)
            left = max(0.05, deadline - time.monotonic())
            attempt_s = min(left, self.settings.publish_attempt_s)
            try:
                await link.unless_interrupted(
                    link.js.publish(to, raw, timeout=attempt_s, stream=stream, headers=dict(headers))
                )
                return
            except nats.errors.MaxPayloadError as error:
                raise BusRefused(f"{to}: {len(raw)} bytes exceed the server's max_payload") from error
            except BadRequestError as error:
                raise BusRefused(f"{to}: {error.description}") from error
            except NoStreamResponseError as error:
                last = error
                await self._restore_streams(link)
            except APIError as error:  # no quorum, stream full, server shutting down
                last = error
                await asyncio.sleep(0.05)
            except (nats.errors.Error, Interrupted, OSError, TimeoutError) as error:
                last = error
                if link.forbids(to):
                    raise BusRefused(f"{to}: the server forbids {self.name} to publish here") from error
        raise BusUnavailable(f"{to}: not acknowledged within {timeout_s:g} s ({last or 'not connected'})") from last

    async def _restore_streams(self, link: Link) -> None:
        """The server answers but has lost (or never had) the stream."""
        try:
            await ensure_streams(link.js, self.settings)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            log.warning("streams cannot be restored", error=str(error))
            await asyncio.sleep(0.1)

    def publish_soon(self, envelope: AnyEnvelope, *, detail: str) -> bool:
        if self._outbound is None or self._closed:
            self.stats.dropped += 1
            return False
        try:
            to, raw = subject(envelope.job, type(envelope.body).kind, detail), encode(envelope)
        except ValueError as error:  # MalformedMessage, or a bad subject token
            self.stats.dropped += 1
            log.error("message cannot be encoded", schema=envelope.schema_, error=str(error))
            return False
        self._outbound.put(to, raw, envelope.message_id)
        return True

    async def _send_core(self, to: str, raw: bytes, message_id: str) -> None:
        await self._require().client.publish(to, raw, headers={Header.MSG_ID: message_id})

    # --- receiving ----------------------------------------------------------------------------------------------

    async def consume(
        self, durable: str, kind: Kind, handler: Handler, *, job: str = "*", detail: str = "*", batch: int = 64
    ) -> Subscription:
        spec = ConsumerSpec(durable, stream_of(kind).name, pattern(job, kind, detail), batch)
        consumer = DurableConsumer(self._require(), spec, handler, self.stats)
        with _as_bus_errors(f"consumer {durable}"):
            await consumer.start()
        self._running.append(consumer)
        return consumer

    async def listen(self, kind: Kind, listener: Listener, *, job: str = "*", detail: str = "*") -> Subscription:
        decoder = Decoder(self.stats)

        async def handle(message: Msg) -> None:
            decoded = decoder(message.data, message.subject)
            if not isinstance(decoded, MalformedMessage):
                await listener(decoded)

        return await self._subscribe(pattern(job, kind, detail), handle)

    async def serve(self, detail: str, responder: Responder, *, job: str = "*") -> Subscription:
        async def handle(message: Msg) -> None:
            raw = await answer(message.data, message.subject, responder, self.name, self.stats)
            if message.reply:
                await message.respond(raw)

        return await self._subscribe(pattern(job, Kind.REQUEST, detail), handle)

    async def _subscribe(self, to: str, handle: Callable[[Msg], Awaitable[None]]) -> Subscription:
        live = _Live(self._require(), to, Mailbox(handle, stats=self.stats))
        try:
            with _as_bus_errors(to):
                await live.start()
        except BaseException:
            await live.stop()
            raise
        self._running.append(live)
        return live

    async def request(self, envelope: AnyEnvelope, *, detail: str, timeout_s: float = 5.0) -> AnyEnvelope:
        link = self._require()
        to, raw = subject(envelope.job, type(envelope.body).kind, detail), encode(envelope)
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            await link.wait_up(left)
            try:
                left = max(0.01, deadline - time.monotonic())
                reply = await link.unless_interrupted(link.client.request(to, raw, timeout=left))
                return decode(reply.data)
            except nats.errors.NoRespondersError:
                await asyncio.sleep(min(0.1, left))  # nobody got it: a leader may be about to take over
            except Interrupted:
                continue  # asked again with the same id, which is answered once
            except MalformedMessage as error:
                raise BusRefused(f"{to}: malformed reply: {error}") from error
            except (nats.errors.Error, OSError, TimeoutError) as error:
                raise BusUnavailable(f"{to}: no reply within {timeout_s:g} s") from error
        raise BusUnavailable(f"{to}: nobody answers ({timeout_s:g} s)")

    async def keep(self, name: str, data: bytes, *, timeout_s: float = 5.0) -> None:
        link = self._require()
        await _in_time(shelf.put(link.js, self.settings, name, data), timeout_s, name)

    async def kept(self, name: str, *, timeout_s: float = 5.0) -> bytes | None:
        link = self._require()
        return await _in_time(shelf.get(link.js, self.settings, name), timeout_s, name)

    async def last_sequence(self, kind: Kind) -> int:
        link, name = self._require(), stream_of(kind).name
        with _as_bus_errors(f"stream {name}"):
            state = (await link.js.stream_info(name)).state
        return int(state.last_seq)

    async def replay(
        self, kind: Kind, *, after_sequence: int | None, job: str = "*", detail: str = "*"
    ) -> AsyncGenerator[Stored, None]:
        replay = Replay(self._require(), stream_of(kind).name, pattern(job, kind, detail), after_sequence, self.stats)
        self._replays.add(replay)
        messages = replay.messages()
        try:
            async for stored in messages:
                yield stored
        finally:
            self._replays.discard(replay)
            await messages.aclose()


async def _in_time(work: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
    try:
        return await asyncio.wait_for(work, timeout_s)
    except TimeoutError as error:
        raise BusUnavailable(f"{what}: no answer within {timeout_s:g} s") from error


@contextlib.contextmanager
def _as_bus_errors(what: str):  # type: ignore[no-untyped-def]
    """nats errors -> this room's errors."""
    try:
        yield
    except BadRequestError as error:
        raise BusRefused(f"{what}: {error.description}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise BusUnavailable(f"{what}: {error or type(error).__name__}") from error
