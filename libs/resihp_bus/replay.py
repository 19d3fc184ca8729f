"""Reading a stream from a position onwards, without a durable name: history first, then live, without a gap.

An ephemeral pull consumer without acknowledgements. Its own sequence shows lost deliveries; then, and whenever the
connection is new or the server forgot it, it is created again right after the last message that was yielded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from resihp_bus.delivery import Decoder, log
from resihp_bus.link import Link
from resihp_bus.port import BusUnavailable, Stored
from resihp_bus.stats import BusStats
from resihp_bus.tasks import being_cancelled
from resihp_messages import MalformedMessage, new_id

FETCH_S = 1.0
BATCH = 256


class Replay:
    """One reader. `messages()` ends when `stop` is called or the bus is closed."""

    def __init__(
        self, link: Link, stream: str, filter_subject: str, after_sequence: int | None, stats: BusStats
    ) -> None:
        self._link = link
        self._stream = stream
        self._filter = filter_subject
        self._after = after_sequence
        self._decode = Decoder(stats)
        self._consumer = ""
        self._generation = -1
        self._expected = 1
        self._stopped = False
        self._fetching: asyncio.Task[list[Msg]] | None = None

    def stop(self) -> None:
        """End the iteration. Idempotent."""
        self._stopped = True
        self._interrupt()

    async def messages(self) -> AsyncGenerator[Stored, None]:
        """Every valid message in order. Malformed ones are counted and skipped."""
        sub: JetStreamContext.PullSubscription | None = None
        self._link.on_change.append(self._interrupt)
        try:
            while not (self._stopped or self._link.closed or being_cancelled()):
                try:
                    await self._link.wait_up(0.5)
                    if sub is None or self._generation != self._link.generation:
                        await self._release(sub)
                        sub = await self._open()
                    batch = await self._fetch(sub)
                except (nats.errors.Error, BusUnavailable, OSError, TimeoutError) as error:
                    self._generation = -1
                    silent = self._link.rate.allow(f"replay {self._stream}")
                    if silent is not None and self._link.up:
                        log.warning("replay interrupted", stream=self._stream, error=str(error) or repr(error))
                    await asyncio.sleep(0.1)
                    continue
                for message in batch:
                    stored = self._accept(message)
                    if self._generation == -1:
                        break
                    if stored is not None:
                        yield stored
        finally:
            self._link.on_change.remove(self._interrupt)
            await self._release(sub)

    def _accept(self, message: Msg) -> Stored | None:
        sequence = message.metadata.sequence
        if sequence.consumer != self._expected:
            self._generation = -1  # a delivery was lost on the way: open again after the last good one
            return None
        self._expected += 1
        self._after = sequence.stream
        decoded = self._decode(message.data, message.subject)
        return None if isinstance(decoded, MalformedMessage) else Stored(sequence.stream, decoded)

    async def _open(self) -> JetStreamContext.PullSubscription:
        generation, js = self._link.generation, self._link.js
        state = (await js.stream_info(self._stream)).state
        if self._after is None:
            self._after = state.last_seq
        elif self._after > state.last_seq:
            self._after = 0  # the stream is younger than the reader's position: all of it is new
        self._consumer = f"replay-{new_id()}"
        await js.add_consumer(
            self._stream,
            ConsumerConfig(
                name=self._consumer,
                filter_subject=self._filter,
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._after + 1,
                ack_policy=AckPolicy.NONE,
                mem_storage=True,
                inactive_threshold=30.0,
            ),
        )
        sub = await js.pull_subscribe_bind(self._consumer, stream=self._stream)
        self._generation, self._expected = generation, 1
        return sub

    async def _fetch(self, sub: JetStreamContext.PullSubscription) -> list[Msg]:
        self._fetching = asyncio.get_running_loop().create_task(sub.fetch(1, timeout=FETCH_S))
        try:
            await asyncio.wait({self._fetching})
            if self._fetching.cancelled():
                return []
            messages = self._fetching.result()
        except TimeoutError:
            return []
        finally:
            self._fetching.cancel()  # if this task itself was cancelled
            self._fetching = None
        waiting = min(messages[0].metadata.num_pending or 0, BATCH)
        if waiting:
            with contextlib.suppress(TimeoutError):
                messages += await sub.fetch(waiting, timeout=FETCH_S)
        return messages

    def _interrupt(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()

    async def _release(self, sub: JetStreamContext.PullSubscription | None) -> None:
        """Best effort: the server removes an unused ephemeral consumer by itself."""
        if sub is None:
            return
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await sub.unsubscribe()
            if self._link.up:
                await self._link.js.delete_consumer(self._stream, self._consumer)
