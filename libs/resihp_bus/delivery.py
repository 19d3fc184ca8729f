"""From raw bytes to a settled message: decoding, handler, retries. Shared by both adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from resihp_bus.port import Ack, Handler, Outcome, Reject, Retry
from resihp_bus.stats import BusStats
from resihp_messages import AnyEnvelope, MalformedMessage, decode

log: Any = structlog.get_logger("resihp.bus")

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 5.0


@dataclass
class Decoder:
    """Bytes -> envelope. Malformed input is counted, and logged once per source."""

    stats: BusStats
    _seen: set[str] = field(default_factory=set)

    def __call__(self, raw: bytes, source: str) -> AnyEnvelope | MalformedMessage:
        """`source`: the subject, which is all that is known about the sender of broken bytes."""
        try:
            return decode(raw)
        except MalformedMessage as error:
            self.stats.malformed += 1
            if source not in self._seen and len(self._seen) < 10_000:
                self._seen.add(source)
                log.warning("malformed message", source=source, error=str(error), size_bytes=len(raw))
            return error


async def settle(
    envelope: AnyEnvelope,
    handler: Handler,
    *,
    stats: BusStats,
    max_tries: int,
    earlier_tries: int,
    pause: Callable[[float], Awaitable[bool]],
) -> Ack | Reject | None:
    """Call the handler until the message is settled; None if the subscription was stopped before.

    Retries happen here and not at the server, so that their delay is exact and later messages wait. An exception may
    mean a poisonous message: after `max_tries` (deliveries to crashed predecessors, `earlier_tries`, included) it is
    rejected. An explicit `Retry` says that the handler knows the reason, so it may go on for ever.
    `pause(seconds)` sleeps and answers whether to go on.
    """
    errors = earlier_tries
    while True:
        stats.delivered += 1
        try:
            outcome: Outcome = await handler(envelope)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # border: a handler's bug must not end the subscription
            errors += 1
            stats.handler_errors += 1
            log.exception("handler failed", schema=envelope.schema_, message_id=envelope.message_id, tries=errors)
            if errors >= max_tries:
                return Reject(f"{type(error).__name__} after {errors} tries: {error}")
            outcome = Retry(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (errors - 1)))
        if not isinstance(outcome, Retry):
            return outcome
        stats.retried += 1
        if not await pause(outcome.after_s):
            return None


def note_rejected(stats: BusStats, reason: str, *, durable: str, source: str) -> None:
    """A dead letter: counted, and always logged with its reason."""
    stats.rejected += 1
    log.error("message rejected", durable=durable, source=source, reason=reason)
