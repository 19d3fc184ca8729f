"""Answering one request: shared by both adapters."""

from __future__ import annotations

from resihp_bus.delivery import Decoder, log
from resihp_bus.port import Responder
from resihp_bus.stats import BusStats
from resihp_messages import FLEET, AnyEnvelope, Envelope, MalformedMessage, encode, new_id
from resihp_messages.request import Reply


async def answer(raw: bytes, source: str, responder: Responder, name: str, stats: BusStats) -> bytes:
    """Request bytes -> reply bytes. Nonsense and a failing responder are answered, too."""
    decoded = Decoder(stats)(raw, source)
    if isinstance(decoded, MalformedMessage):
        return encode(_refusal(f"malformed request: {decoded}", job=FLEET, name=name, correlation_id=""))
    try:
        return encode(await responder(decoded))
    except Exception as error:  # border: the requester must not wait for its timeout
        stats.handler_errors += 1
        log.exception("responder failed", schema=decoded.schema_, message_id=decoded.message_id)
        reason = f"internal error: {type(error).__name__}: {error}"
        return encode(_refusal(reason, job=decoded.job, name=name, correlation_id=decoded.message_id))


def _refusal(reason: str, *, job: str, name: str, correlation_id: str) -> AnyEnvelope:
    body = Reply(accepted=False, reason=reason[:4096])
    return Envelope[Reply].of(body, job=job, source=name, incarnation=new_id(), correlation_id=correlation_id)
