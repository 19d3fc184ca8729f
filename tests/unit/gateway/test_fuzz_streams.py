"""Whatever stands in `Last-Event-ID`, in a webhooks file or in a receiver's answer: a documented outcome, no bug."""

from __future__ import annotations

import asyncio
import random
import string
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from resihp_gateway.models import EventView
from resihp_gateway.webhooks.config import Webhook, load
from resihp_gateway.webhooks.notifier import Undelivered, deliver
from support.envelopes import event
from support.gateway import TestGateway, open_gateway

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SAMPLE = EventView(
    sequence=1, message_id="m1", name="JobFailed", job="demo", epoch=1, source="d", occurred_at=NOW,
    body={"reason": "x"},
)  # fmt: skip
IDS = (
    *(b"0", b"1", b"3", b"4", b"5", b" 2 ", b"007", b"", b"   ", b"-1", b"+1", b"1.0", b"1e3", b"0x1", b"None"),
    *(b"9" * 18, b"9" * 19, b"9" * 5000, "٣".encode(), "²".encode(), b"1;2", b"1, 2", b"\xff\xfe", b"1\t"),
)


async def begin(gateway: TestGateway, last_event_id: bytes) -> tuple[int, bytes]:
    """Status and first bytes of `/events`, as the application itself sends them."""
    sent: list[dict[str, Any]] = []
    enough = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        body = b"".join(m.get("body", b"") for m in sent)
        if sent[0]["status"] != 200 or b"id: " in body or b"heartbeat" in body:
            enough.set()

    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": "/events", "raw_path": b"/events",
        "query_string": b"", "headers": [(b"host", b"gateway"), (b"last-event-id", last_event_id)], "scheme": "http",
        "server": ("gateway", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    await asyncio.wait_for(gateway.app({**scope}, receive, send), 120)
    return int(sent[0]["status"]), b"".join(m.get("body", b"") for m in sent)


async def test_any_last_event_id_resumes_or_is_refused(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, seeded=False, heartbeat_s=0.02) as gateway:
        for node in "abcd":
            await gateway.bus.publish(event(node), detail="NodeLeft")
        rng = random.Random(5)
        made = [bytes(rng.choices(range(1, 256), k=rng.randrange(1, 30))) for _ in range(60)]
        for value in (*IDS, *made):
            status, body = await begin(gateway, value)
            text = value.decode("latin-1").strip()
            is_number = text.isascii() and text.isdigit() and len(text) <= 18
            if text and not is_number:
                assert status == 422, value
                assert b'"title"' in body, value
                continue
            assert status == 200, value
            # a number beyond the stream belongs to an earlier life of it: everything is new
            resumed = (int(text) if int(text) <= 4 else 0) if text else 4
            first = f"id: {resumed + 1}\n".encode() if resumed < 4 else b": heartbeat"
            assert first in body, value


def noise(rng: random.Random) -> Any:
    letters = string.ascii_letters + string.digits + " .:/\\\"'\n\x00äß☃" + "\U0001f600"
    values = (True, -1, 0, 1, 10**30, 1.5, float("nan"), [], ["WorkerLost"], ["Nothing"], {}, "", "generic", "slack")
    return rng.choice([*values, "https://h/x", "".join(rng.choices(letters, k=rng.randrange(40)))])


def as_toml(value: Any) -> str:
    import json

    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value).replace("NaN", "nan")


def refusal(path: Path) -> str:
    """Why the file is not read; empty: it is."""
    try:
        load(path)
    except ValueError as error:
        return str(error)
    return ""


async def test_any_webhooks_file_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    rng, path, good = random.Random(11), tmp_path / "webhooks.toml", 0
    fields = [*Webhook.model_fields, "else"]
    files = [b"\xff\xfe\x00", b"[[webhook]]", b"webhook = 3", b"[webhook]\nname = 'a'", b"\x00", b""]
    for _ in range(300):
        given = {"name": '"a"', "url": '"https://h/x"'}
        given |= {name: as_toml(noise(rng)) for name in rng.sample(fields, rng.randrange(4))}
        files.append("\n".join(["[[webhook]]", *(f"{k} = {v}" for k, v in given.items())]).encode())
    for content in files:
        path.write_bytes(content)
        reason = refusal(path)
        assert not reason or reason.startswith(str(path)), content
        good += not reason
    assert good >= 20


async def outcome(client: httpx.AsyncClient, hook: Webhook) -> int | Undelivered:
    try:
        return await deliver(client, hook, SAMPLE, 0)
    except Undelivered as error:
        return error


async def test_any_answer_of_a_receiver_is_taken_or_a_reason() -> None:
    rng = random.Random(3)
    delays = ("", "3", "-1", "1e9", "9" * 400, "٣", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT", " ", "0x10")

    def answer(request: httpx.Request) -> httpx.Response:
        if rng.random() < 0.15:
            raise rng.choice([httpx.ReadTimeout, httpx.ConnectError, httpx.RemoteProtocolError])("no luck")
        headers = [(b"retry-after", rng.choice(delays).encode())]
        headers.append((b"location", bytes(rng.choices(range(33, 127), k=12))))
        return httpx.Response(rng.randrange(200, 600), headers=headers, content=rng.randbytes(50))

    for wrong in ("http://", "https:///x", "http://[::1", "http://h:99999/", "ftp://h/", "http://h:x/"):
        with pytest.raises(ValidationError):
            Webhook(name="a", url=wrong)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        for _ in range(300):
            hook = Webhook(name="a", url=rng.choice(("https://h/x", "https://ü.example/", "http://[::1]:8/")))
            answered = await outcome(client, hook)
            if isinstance(answered, Undelivered):
                assert str(answered)
                assert answered.wait_s is None or 0.0 <= answered.wait_s <= 60.0
            else:
                assert 200 <= answered < 300
