"""The outbox relay: what a transaction has decided to say is published, in order, at least once.

The bus stores a message once per id, so a crash between publishing and marking does no harm.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import structlog

from resihp_bus import BusError
from resihp_messages import Kind, decode
from resihp_scheduler.term import Term
from resihp_store import LeadershipLost, OutgoingMessage, StoreUnavailable

log = structlog.get_logger(__name__)

BATCH = 64
PAUSE_S = 0.2


class Relay:
    """`run` for the length of a term."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._stopping = False

    def stop(self) -> None:
        """Publish once more what waits, then end `run`."""
        self._stopping = True
        self._term.store.outbox_filled.set()

    async def run(self) -> None:
        """Publish whenever something is there; never raises for a bus or database that is away."""
        term = self._term
        while not term.deposed.is_set():
            last = self._stopping
            term.store.outbox_filled.clear()
            try:
                complete = await self.flush()
            except LeadershipLost:
                term.deposed.set()
                return
            except StoreUnavailable as error:
                log.warning("database not available", error=str(error))
                complete = False
            if last:
                return
            if not complete:
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                async with asyncio.timeout(term.settings.relay_poll_s):
                    await term.store.outbox_filled.wait()
            except TimeoutError:
                continue

    async def flush(self) -> bool:
        """Publish everything that waits; False if the bus did not take all of it."""
        while messages := await self._term.store.unsent(BATCH):
            sent = await self._publish(messages)
            if sent:
                async with self._term.transaction() as work:
                    await work.mark_sent(sent)
                self._term.metrics.relayed.inc(len(sent))
            if len(sent) < len(messages):
                return False
        return True

    async def _publish(self, messages: Sequence[OutgoingMessage]) -> list[int]:
        """Side by side for different receivers, in order for each: a node's commands, a job's events."""
        lanes: dict[tuple[str, str], list[OutgoingMessage]] = {}
        for message in messages:
            lane = message.detail if message.kind == Kind.COMMAND else message.job
            lanes.setdefault((message.kind, lane), []).append(message)
        return list(itertools.chain(*await asyncio.gather(*(self._lane(lane) for lane in lanes.values()))))

    async def _lane(self, messages: Sequence[OutgoingMessage]) -> list[int]:
        sent: list[int] = []
        for message in messages:
            if not self._term.in_force():
                break
            try:
                await self._term.bus.publish(decode(message.payload), detail=message.detail)
            except BusError as error:
                log.warning("publish failed", message_id=message.message_id, error=str(error))
                break
            sent.append(message.id)
        return sent
