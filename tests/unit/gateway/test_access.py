"""Tokens and roles, writes from elsewhere, the rate limit."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from resihp_gateway.access import Role, TokenFile
from resihp_gateway.guard import RateLimit
from resihp_gateway.settings import GatewaySettings
from resihp_messages.event import ActionAnswered, ActionRequested
from resihp_messages.request import Reply
from support.gateway import open_gateway, play_scheduler

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@asynccontextmanager
async def served(folder: Path, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    async with open_gateway(folder, **settings) as opened:
        transport = httpx.ASGITransport(opened.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            await play_scheduler(opened, "RequestStop", Reply(accepted=True))
            yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_each_role_may_what_it_says(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    tokens = {role: file.create(f"{role}-token", role, NOW) for role in Role}
    expected = {Role.VIEW: (200, 403, 403), Role.OPERATE: (200, 202, 403), Role.ADMIN: (200, 202, 503)}
    async with served(tmp_path, tokens_file=str(file.path)) as http:
        for role, (read, stop, fault) in expected.items():
            headers = bearer(tokens[role])
            assert (await http.get("/api/v1/jobs", headers=headers)).status_code == read
            assert (await http.post("/api/v1/jobs/demo/stop", headers=headers)).status_code == stop
            body = {"rank": 1, "fault": "kill"}  # nobody answers this verb here: 503 is past the gate
            assert (await http.post("/api/v1/jobs/demo/faults", headers=headers, json=body)).status_code == fault
        me = (await http.get("/api/v1/me", headers=bearer(tokens[Role.OPERATE]))).json()
        assert me == {"name": "operate-token", "role": "operate", "tokens": True}


async def test_without_or_with_a_wrong_token_nothing_is_told(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    token = file.create("alice", Role.VIEW, NOW)
    async with served(tmp_path, tokens_file=str(file.path)) as http:
        for path in ("/api/v1/jobs", "/api/v1/live?job=demo", "/events", "/api/v1/audit"):
            for headers in ({}, bearer("rhp_wrong")):
                response = await http.get(path, headers=headers)
                assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer"), path
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/")).status_code == 200  # the page itself holds no secret; it asks for the token
        assert (await http.get("/api/v1/jobs", headers=bearer(token))).status_code == 200
        file.revoke("alice")
        assert (await http.get("/api/v1/jobs", headers=bearer(token))).status_code == 401


def test_only_digests_are_kept(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "x" / "tokens.json")
    token = file.create("alice", Role.VIEW, NOW)
    assert token not in file.path.read_text()
    assert os.stat(file.path).st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="already"):
        file.create("alice", Role.ADMIN, NOW)
    with pytest.raises(ValueError, match="no token named"):
        file.revoke("bob")
    file.path.write_text("{")
    with pytest.raises(ValueError, match="not a token file"):
        file.read()


def test_elsewhere_than_on_loopback_somebody_must_decide() -> None:
    assert GatewaySettings().anonymous_role is Role.ADMIN
    assert GatewaySettings(host="::1").anonymous_role is Role.ADMIN
    with pytest.raises(ValueError, match="RESIHP_GATEWAY_TOKENS_FILE"):
        _ = GatewaySettings(host="0.0.0.0").anonymous_role
    assert GatewaySettings(host="0.0.0.0", tokens_file=Path("t")).anonymous_role is None
    assert GatewaySettings(host="0.0.0.0", anonymous=Role.VIEW).anonymous_role is Role.VIEW


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Origin": "http://evil.example"}, "evil.example"),
        ({"Origin": "null"}, "null"),
        ({"Host": "evil.example:8765", "Origin": "http://evil.example:8765"}, "host name"),
    ],
)
async def test_foreign_pages_cannot_write(tmp_path: Path, headers: dict[str, str], words: str) -> None:
    async with served(tmp_path) as http:
        response = await http.post("/api/v1/jobs/demo/stop", headers=headers)
        assert response.status_code == 403
        assert words in response.json()["detail"]
        assert (await http.post("/api/v1/jobs/demo/stop", headers={"Origin": "http://gateway"})).status_code == 202


async def test_every_answer_carries_the_security_headers(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        for path in ("/", "/api/v1/jobs", "/api/v1/jobs/nobody", "/livez"):
            headers = (await http.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "script-src 'self'" in headers["content-security-policy"]


def test_rate_limit_is_a_bucket_per_client() -> None:
    now = 0.0
    limit = RateLimit(2.0, 3, lambda: now)
    assert [limit.wait_s("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert limit.wait_s("a") == pytest.approx(0.5)
    assert limit.wait_s("b") == 0.0
    now = 0.5
    assert limit.wait_s("a") == 0.0
    assert limit.wait_s("a") > 0.0


async def test_too_many_writes_are_429(tmp_path: Path) -> None:
    async with served(tmp_path, write_burst=2, write_rate_per_s=0.1) as http:
        answers = [await http.post("/api/v1/jobs/demo/stop") for _ in range(3)]
        assert [a.status_code for a in answers] == [202, 202, 429]
        assert int(answers[2].headers["retry-after"]) >= 1
        assert (await http.get("/api/v1/jobs")).status_code == 200


async def test_what_was_asked_is_on_record_before_it_is_done(tmp_path: Path) -> None:
    """Both events carry the id of the request, and the first one is stored before the scheduler hears of it."""
    async with open_gateway(tmp_path) as opened:
        asked = await play_scheduler(opened, "RequestMode", Reply(accepted=False, reason="not now"))
        transport = httpx.ASGITransport(opened.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            body = {"mode": "advise", "reason": "evaluation"}
            response = await http.post("/api/v1/jobs/demo/mode", json=body)
        assert (response.status_code, response.json()["detail"]) == (409, "not now")
        stored = [e for e in opened.broker_events() if isinstance(e.body, ActionRequested | ActionAnswered)]
        first, second = (e.body for e in stored)
        assert isinstance(first, ActionRequested)
        assert isinstance(second, ActionAnswered)
        assert (first.action, first.actor, first.role, first.reason) == (
            "RequestMode",
            "anonymous",
            "admin",
            "evaluation",
        )
        assert first.parameters == {"mode": "advise"}
        assert (second.accepted, second.detail) == (False, "not now")
        assert {e.correlation_id for e in stored} == {asked[0].message_id}
