"""Webhooks: signature, bodies, retries, giving up, no repeats; and the file that names them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from resihp_bus import Ack, MemoryBroker, MemoryBus, Retry
from resihp_chassis import Metrics
from resihp_gateway.webhooks.config import Format, Webhook, load
from resihp_gateway.webhooks.message import sign
from resihp_gateway.webhooks.notifier import Notifier
from resihp_messages import AnyEnvelope, Envelope
from resihp_messages.event import WorkerLost
from support.samples import FAILURE
from support.waiting import wait_for

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


class Receiver:
    """Answers with the given statuses in turn, then 200; keeps what it was sent."""

    def __init__(self, *statuses: int, headers: dict[str, str] | None = None) -> None:
        self.requests: list[httpx.Request] = []
        self._statuses = list(statuses)
        self._headers = headers or {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(self._statuses.pop(0) if self._statuses else 200, headers=self._headers)


def lost(**header: Any) -> AnyEnvelope:
    return Envelope.of(WorkerLost.model_validate(FAILURE), job="demo", source="detector", incarnation="d", **header)


def notifier(receiver: Callable[[httpx.Request], httpx.Response], bus: Any = None, **more: Any) -> Notifier:
    client = httpx.AsyncClient(transport=httpx.MockTransport(receiver))
    return Notifier(bus, more.pop("hooks", ()), client, Metrics("gateway"), **more)


def hook(**changes: Any) -> Webhook:
    return Webhook.model_validate({"name": "oncall", "url": "https://hooks.example/x", "secret": SECRET, **changes})


async def test_signed_so_that_the_receiver_can_check(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    envelope = lost()
    assert await notifier(receiver).handler(hook())(envelope) == Ack()
    (request,) = receiver.requests
    assert request.headers["webhook-id"] == envelope.message_id
    content = f"{envelope.message_id}.{request.headers['webhook-timestamp']}.".encode() + request.content
    expected = base64.b64encode(hmac.new(b"0123456789abcdef01234567", content, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    body = json.loads(request.content)
    assert body["type"] == "WorkerLost"
    assert body["data"]["body"]["verdict"]["ranks"] == [3]
    assert "rank 3 stopped" in body["text"]


def test_the_specifications_own_example() -> None:
    given = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330)
    assert sign(*given, b'{"test": 2432232314}') == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_slack_body_escapes_what_slack_would_read_as_markup() -> None:
    receiver = Receiver()
    await notifier(receiver).handler(hook(format=Format.SLACK))(lost())
    body = json.loads(receiver.requests[0].content)
    assert body["blocks"][0]["text"]["text"].startswith(":red_circle: *demo*: rank 3 stopped")
    assert "<" not in body["blocks"][0]["text"]["text"]


async def test_retried_with_growing_waits_then_never_again() -> None:
    receiver = Receiver(500, 503, 429)
    handle = notifier(receiver).handler(hook())
    envelope = lost()
    assert [await handle(envelope) for _ in range(4)] == [Retry(1.0), Retry(2.0), Retry(4.0), Ack()]
    assert await handle(envelope) == Ack()  # delivered again by the bus: known
    assert len(receiver.requests) == 4
    assert len({r.headers["webhook-id"] for r in receiver.requests}) == 1


async def test_the_receivers_wish_to_wait_is_heard() -> None:
    handle = notifier(Receiver(429, headers={"Retry-After": "17"})).handler(hook())
    assert await handle(lost()) == Retry(17.0)


async def test_refused_for_good_is_not_asked_again() -> None:
    receiver = Receiver(410)
    handle = notifier(receiver).handler(hook())
    envelope = lost()
    assert [await handle(envelope), await handle(envelope)] == [Ack(), Ack()]
    assert len(receiver.requests) == 1


async def test_unreachable_is_tried_until_the_event_is_too_old() -> None:
    now = datetime.now(UTC)

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    handle = notifier(refuse, now=lambda: now).handler(hook(max_age_s=60))
    envelope = lost()
    assert await handle(envelope) == Retry(1.0)
    now += timedelta(seconds=61)
    assert await handle(envelope) == Ack()


async def test_only_what_was_asked_for_and_nothing_twice_over_a_restart() -> None:
    """On the bus: the second notifier begins where the first one ended."""
    broker, receiver = MemoryBroker(), Receiver()
    bus = MemoryBus(broker, "gateway")
    await bus.connect()
    for index, job in enumerate(("demo", "other", "demo")):
        await bus.publish(lost(message_id=f"m{index}").model_copy(update={"job": job}), detail="WorkerLost")
    mine = hook(job="demo")
    async with notifier(receiver, bus, hooks=(mine,)).running():
        await wait_for(lambda: len(receiver.requests) == 2, 5)
    await bus.publish(lost(message_id="m9"), detail="WorkerLost")
    async with notifier(receiver, bus, hooks=(mine,)).running():
        await wait_for(lambda: len(receiver.requests) == 3, 5)
    assert [r.headers["webhook-id"] for r in receiver.requests] == ["m0", "m2", "m9"]
    await bus.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[webhook]\n", "not TOML"),
        ('[[webhook]]\nname = "a"\nurl = "ftp://x"\n', "webhook.0.url: expected http"),
        ('[[webhook]]\nname = "a"\nurl = "http://x"\nevents = ["Nothing"]\n', "unknown event Nothing"),
        ('[[webhook]]\nname = "a"\nurl = "http://x"\nsecret = "short"\n', "16 characters"),
        ('[[webhook]]\nname = "a"\nurl = "http://x"\nsecret_env = "RESIHP_NOT_SET"\n', "RESIHP_NOT_SET is not set"),
        ('[[webhook]]\nname = "a"\nurl = "http://x"\n[[webhook]]\nname = "a"\nurl = "http://y"\n', "same name"),
        ('[[webhook]]\nname = "a"\nurl = "http://x"\ncolour = 1\n', "colour"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "webhooks.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        load(path)


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "webhooks.toml"
    path.write_text(f'[[webhook]]\nname = "a"\nurl = "http://x"\nsecret = "{SECRET}"\n')
    (found,) = load(path)
    assert SECRET not in repr(found)
    assert found.key == SECRET
