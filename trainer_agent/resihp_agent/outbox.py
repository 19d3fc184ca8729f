"""Durable messages of the agent on their way to the bus: events and acknowledgements.

Putting one in never waits, so a dead bus delays neither aborts nor training. One task publishes in order and repeats
with the same message id until the bus has stored it. The outbox lives in memory on purpose: a message says what
happened to workers of this agent's incarnation, and if the agent dies, its next `NodeJoined` says that they are gone.
"""

from __future__ import annotations

import asyncio
from collections import deque

import structlog

from resihp_bus.port import Bus, BusRefused, BusUnavailable
from resihp_messages import AnyEnvelope, MalformedMessage

log = structlog.get_logger(__name__)

_RETRY_S = 0.2


class Outbox:
    """First in, first out, at least once per message, stored once per message id."""

    def __init__(self, bus: Bus, *, retry_s: float = _RETRY_S) -> None:
        self._bus = bus
        self._retry_s = retry_s
        self._queue: deque[tuple[AnyEnvelope, str]] = deque()
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.num_retries = 0
        self.num_refused = 0

    @property
    def depth(self) -> int:
        """Messages that the bus has not confirmed."""
        return len(self._queue)

    def put(self, envelope: AnyEnvelope, *, detail: str) -> None:
        """Never waits and never fails."""
        self._queue.append((envelope, detail))
        self._empty.clear()
        self._filled.set()

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            if not self._queue:
                self._empty.set()
                self._filled.clear()
                await self._filled.wait()
            await self._publish_head()

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything is stored. False if that took longer."""
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def _publish_head(self) -> None:
        envelope, detail = self._queue[0]
        try:
            await self._bus.publish(envelope, detail=detail)
        except BusUnavailable as error:
            if self.num_retries % 50 == 0:  # ten seconds of retries: one line
                log.warning("publish_delayed", schema=envelope.schema_, waiting=self.depth, error=str(error))
            self.num_retries += 1
            await asyncio.sleep(self._retry_s)
            return
        except (BusRefused, MalformedMessage) as error:  # trying again is useless; later messages must not wait
            self.num_refused += 1
            log.error("publish_refused", schema=envelope.schema_, error=str(error))
        self._queue.popleft()
