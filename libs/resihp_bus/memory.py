"""The bus inside one process: the same promises as `JetStreamBus` (tests/contract/bus), for unit tests of the rooms.

Messages are encoded and decoded as on the wire, so that what passes here passes there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from resihp_bus.answer import answer
from resihp_bus.delivery import Decoder, log, note_rejected, settle
from resihp_bus.mailbox import Mailbox
from resihp_bus.port import Ack, BusUnavailable, Handler, Listener, Responder, Stored, Subscription
from resihp_bus.stats import BusStats
from resihp_messages import (
    STREAMS,
    AnyEnvelope,
    Kind,
    MalformedMessage,
    decode,
    encode,
    parse,
    pattern,
    stream_of,
    subject,
)

_STORED = frozenset(spec.kind for spec in STREAMS)


def matches(subscription: str, to: str) -> bool:
    """NATS subject matching: `*` is one token, a final `>` one or more."""
    wanted, got = subscription.split("."), to.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(got) > i
        if i >= len(got) or token not in ("*", got[i]):
            return False
    return len(wanted) == len(got)


@dataclass
class _Durable:
    position: int = 0
    """Sequence of the last settled message."""
    deliveries: dict[int, int] = field(default_factory=dict)
    """Deliveries that were not settled, by sequence: earlier tries of crashed consumers."""


@dataclass(frozen=True)
class _Record:
    to: str
    raw: bytes


class MemoryBroker:
    """What a server would hold: streams, durables, subscriptions. Shared by the buses of one test.

    `available = False` is a server that is down: buses are not connected, publishes raise, consumers wait.
    """

    def __init__(self) -> None:
        self.streams: dict[Kind, list[_Record]] = {kind: [] for kind in _STORED}
        self.kept: dict[str, bytes] = {}
        self._ids: set[str] = set()
        self._durables: dict[tuple[Kind, str], _Durable] = {}
        self._live: list[tuple[str, Mailbox[_Record]]] = []
        self._servers: list[tuple[str, Callable[[bytes, str], Awaitable[bytes]]]] = []
        self._arrived: set[asyncio.Event] = set()
        self._available = True

    @property
    def available(self) -> bool:
        return self._available

    @available.setter
    def available(self, value: bool) -> None:
        self._available = value
        self._wake()

    def inject(self, to: str, raw: bytes, *, message_id: str | None = None) -> None:
        """Publish raw bytes, valid or not, as a foreign program could."""
        record = _Record(to, raw)
        kind = parse(to).kind
        if kind in _STORED and (message_id is None or message_id not in self._ids):
            self.streams[kind].append(record)
            if message_id is not None:
                self._ids.add(message_id)
        # Live subscribers hear a repeated message again: only the stream knows ids.
        for wanted, mailbox in tuple(self._live):
            if matches(wanted, to):
                mailbox.put(record)
        self._wake()

    def stored(self, kind: Kind) -> tuple[AnyEnvelope, ...]:
        """Everything in a stream, decoded. Raises `MalformedMessage` for injected nonsense."""
        return tuple(decode(record.raw) for record in self.streams[kind])

    def _wake(self) -> None:
        for event in self._arrived:
            event.set()


class _Stoppable(Protocol):
    async def stop(self) -> None: ...


class MemoryBus:
    """`Bus` on a `MemoryBroker` (port.Bus states the promises)."""

    def __init__(self, broker: MemoryBroker | None = None, name: str = "memory", *, max_tries: int = 10) -> None:
        self.broker = broker or MemoryBroker()
        self.name = name
        self.stats = BusStats()
        self._max_tries = max_tries
        self._connected = False
        self._closed = asyncio.Event()
        self._running: list[_Stoppable] = []

    async def connect(self) -> None:
        if not self.broker.available:
            raise BusUnavailable("memory broker is down")
        self._connected = True
        self._closed.clear()

    async def close(self) -> None:
        if not self._connected:
            return
        self._connected = False
        self._closed.set()
        self.broker._wake()
        for running in self._running:
            await running.stop()
        self._running.clear()

    @property
    def connected(self) -> bool:
        return self._connected and self.broker.available

    def _require(self) -> MemoryBroker:
        if not self.connected:
            raise BusUnavailable("not connected")
        return self.broker

    async def publish(self, envelope: AnyEnvelope, *, detail: str, timeout_s: float = 2.0) -> None:
        to, raw = subject(envelope.job, type(envelope.body).kind, detail), encode(envelope)
        if type(envelope.body).kind in _STORED and self._connected:
            await self._until(lambda: self.connected, timeout_s, to)
        self._require().inject(to, raw, message_id=envelope.message_id)
        self.stats.published += 1
        await asyncio.sleep(0)  # a real publish yields, too

    def publish_soon(self, envelope: AnyEnvelope, *, detail: str) -> bool:
        try:
            to, raw = subject(envelope.job, type(envelope.body).kind, detail), encode(envelope)
            self._require().inject(to, raw, message_id=envelope.message_id)
        except (ValueError, BusUnavailable) as error:
            self.stats.dropped += 1
            log.debug("message dropped", error=str(error))
            return False
        self.stats.published += 1
        return True

    async def consume(
        self, durable: str, kind: Kind, handler: Handler, *, job: str = "*", detail: str = "*", batch: int = 64
    ) -> Subscription:
        broker = self._require()
        stream_of(kind)
        state = broker._durables.setdefault((kind, durable), _Durable())
        consumer = _MemoryConsumer(self, broker, durable, kind, pattern(job, kind, detail), state, handler)
        self._running.append(consumer)
        return consumer

    async def listen(self, kind: Kind, listener: Listener, *, job: str = "*", detail: str = "*") -> Subscription:
        broker, decoder = self._require(), Decoder(self.stats)

        async def handle(record: _Record) -> None:
            decoded = decoder(record.raw, record.to)
            if not isinstance(decoded, MalformedMessage):
                await listener(decoded)

        live = _MemoryLive(broker, pattern(job, kind, detail), Mailbox(handle, stats=self.stats))
        self._running.append(live)
        return live

    async def request(self, envelope: AnyEnvelope, *, detail: str, timeout_s: float = 5.0) -> AnyEnvelope:
        broker = self._require()
        to, raw = subject(envelope.job, type(envelope.body).kind, detail), encode(envelope)

        def servers() -> list[Callable[[bytes, str], Awaitable[bytes]]]:
            return [respond for wanted, respond in broker._servers if matches(wanted, to)]

        await self._until(lambda: bool(servers()), timeout_s, to)
        try:
            return decode(await asyncio.wait_for(servers()[0](raw, to), timeout_s))
        except TimeoutError:
            raise BusUnavailable(f"{to}: no reply within {timeout_s:g} s") from None

    async def serve(self, detail: str, responder: Responder, *, job: str = "*") -> Subscription:
        server = _MemoryServer(self._require(), pattern(job, Kind.REQUEST, detail), responder, self.name, self.stats)
        self._running.append(server)
        return server

    async def keep(self, name: str, data: bytes, *, timeout_s: float = 5.0) -> None:
        self._require().kept[name] = bytes(data)
        await asyncio.sleep(0)

    async def kept(self, name: str, *, timeout_s: float = 5.0) -> bytes | None:
        return self._require().kept.get(name)

    async def last_sequence(self, kind: Kind) -> int:
        return len(self._require().streams[stream_of(kind).kind])

    async def replay(
        self, kind: Kind, *, after_sequence: int | None, job: str = "*", detail: str = "*"
    ) -> AsyncGenerator[Stored, None]:
        broker, wanted, decoder = self._require(), pattern(job, kind, detail), Decoder(self.stats)
        stream = broker.streams[stream_of(kind).kind]
        position = len(stream) if after_sequence is None or after_sequence < 0 else after_sequence
        if position > len(stream):
            position = 0  # the stream is younger than the reader's position
        arrived = asyncio.Event()
        broker._arrived.add(arrived)
        try:
            while not self._closed.is_set():
                if position >= len(stream) or not broker.available:
                    arrived.clear()
                    await arrived.wait()
                    continue
                record = stream[position]
                position += 1
                decoded = decoder(record.raw, record.to) if matches(wanted, record.to) else None
                if decoded is not None and not isinstance(decoded, MalformedMessage):
                    yield Stored(position, decoded)
        finally:
            broker._arrived.discard(arrived)

    async def _until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a change of the broker that makes `condition` true. Raises `BusUnavailable`."""
        changed = asyncio.Event()
        self.broker._arrived.add(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if self._closed.is_set():
                        raise BusUnavailable("the bus is closed")
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise BusUnavailable(f"{what}: no answer within {timeout_s:g} s") from None
        finally:
            self.broker._arrived.discard(changed)


class _MemoryConsumer:
    def __init__(
        self,
        bus: MemoryBus,
        broker: MemoryBroker,
        durable: str,
        kind: Kind,
        wanted: str,
        state: _Durable,
        handler: Handler,
    ) -> None:
        self._bus, self._broker, self._durable = bus, broker, durable
        self._stream, self._wanted, self._state, self._handler = broker.streams[kind], wanted, state, handler
        self._decode = Decoder(bus.stats)
        self._arrived = asyncio.Event()
        self._stopping = asyncio.Event()
        broker._arrived.add(self._arrived)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self._stopping.set()
        self._arrived.set()
        self._broker._arrived.discard(self._arrived)
        if asyncio.current_task() is not self._task:
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        state = self._state
        while not self._stopping.is_set():
            if state.position >= len(self._stream) or not self._broker.available:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            sequence = state.position + 1
            record = self._stream[state.position]
            if matches(self._wanted, record.to):
                earlier = state.deliveries.get(sequence, 0)
                state.deliveries[sequence] = earlier + 1
                if not await self._settle(record, earlier):
                    return
                state.deliveries.pop(sequence, None)
            state.position = sequence

    async def _settle(self, record: _Record, earlier: int) -> bool:
        stats = self._bus.stats
        decoded = self._decode(record.raw, record.to)
        if isinstance(decoded, MalformedMessage):
            note_rejected(stats, str(decoded), durable=self._durable, source=record.to)
            return True
        outcome = await settle(
            decoded,
            self._handler,
            stats=stats,
            max_tries=self._bus._max_tries,
            earlier_tries=earlier,
            pause=self._pause,
        )
        if outcome is None:
            return False
        if not isinstance(outcome, Ack):
            note_rejected(stats, outcome.reason, durable=self._durable, source=record.to)
        return True

    async def _pause(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return True
        return False


class _MemoryLive:
    def __init__(self, broker: MemoryBroker, wanted: str, mailbox: Mailbox[_Record]) -> None:
        self._broker = broker
        self._entry = (wanted, mailbox)
        broker._live.append(self._entry)

    async def stop(self) -> None:
        if self._entry in self._broker._live:
            self._broker._live.remove(self._entry)
        await self._entry[1].stop()


class _MemoryServer:
    """Requests are answered one at a time, as by `JetStreamBus`."""

    def __init__(self, broker: MemoryBroker, wanted: str, responder: Responder, name: str, stats: BusStats) -> None:
        self._broker = broker
        self._turn = asyncio.Lock()
        self._waiting: deque[None] = deque()

        async def respond(raw: bytes, source: str) -> bytes:
            async with self._turn:
                return await answer(raw, source, responder, name, stats)

        self._entry = (wanted, respond)
        broker._servers.append(self._entry)
        broker._wake()

    async def stop(self) -> None:
        if self._entry in self._broker._servers:
            self._broker._servers.remove(self._entry)
        async with self._turn:
            pass
