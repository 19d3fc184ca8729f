"""The request of one delivery: body and headers. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass

from resihp_gateway.models import EventView
from resihp_gateway.webhooks.config import Format, Webhook
from resihp_gateway.wording import ALARMS, GOOD, describe

SECRET_PREFIX = "whsec_"


@dataclass(frozen=True)
class Request:
    """What is sent."""

    body: bytes
    headers: Mapping[str, str]


def request(hook: Webhook, event: EventView, now_s: int) -> Request:
    """`now_s`: seconds since 1970, part of the signature so that a receiver can refuse old requests."""
    body = json.dumps(_slack(event) if hook.format is Format.SLACK else _generic(event), separators=(",", ":")).encode()
    headers = {
        "content-type": "application/json",
        "user-agent": "resihp",
        "webhook-id": event.message_id,
        "webhook-timestamp": str(now_s),
    }
    if hook.key is not None:
        headers["webhook-signature"] = sign(hook.key, event.message_id, now_s, body)
    return Request(body, headers)


def sign(key: str, message_id: str, now_s: int, body: bytes) -> str:
    """`v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body` (Standard Webhooks).

    >>> sign("a secret of 20 chars", "m1", 1614265330, b"{}")[:3]
    'v1,'
    """
    content = f"{message_id}.{now_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(_raw(key), content, hashlib.sha256).digest()).decode()


def _raw(key: str) -> bytes:
    if not key.startswith(SECRET_PREFIX):
        return key.encode()
    try:
        return base64.b64decode(key.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        return key.encode()


def _generic(event: EventView) -> dict[str, object]:
    return {
        "type": event.name,
        "timestamp": event.occurred_at.isoformat(),
        "text": f"{event.job}: {describe(event)}",
        "data": event.model_dump(mode="json"),
    }


def _slack(event: EventView) -> dict[str, object]:
    sign = (
        ":red_circle:"
        if event.name in ALARMS
        else ":large_green_circle:"
        if event.name in GOOD
        else ":large_blue_circle:"
    )
    text = f"{sign} *{_escape(event.job)}*: {_escape(describe(event))}"
    context = f"{event.name} · {event.occurred_at:%Y-%m-%d %H:%M:%S} UTC · epoch {event.epoch}"
    return {
        "text": f"{event.job}: {describe(event)}",
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": text[:3000]}},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": _escape(context)}]},
        ],
    }


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
