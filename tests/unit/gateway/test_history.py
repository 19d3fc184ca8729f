"""Lists: filters, order, cursors; nothing skipped or repeated while rows arrive. And the audit trail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from resihp_messages import Envelope
from resihp_messages.event import ActionAnswered, ActionRequested
from resihp_store import ReconfigurationStatus, Store
from support.gateway import TestGateway, open_gateway
from support.store import NOON, incident, reconfiguration

KINDS = ("worker_lost", "worker_frozen")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[TestGateway]:
    async with open_gateway(tmp_path) as opened:
        yield opened


@pytest.fixture
async def http(gateway: TestGateway) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


async def add(url: str, numbers: range) -> None:
    """Incident k (rank k % 4, kinds in turn; two share each second), each with an applied change."""
    store = Store(url)
    token = await store.lease(holder="seed", ttl_s=60).acquire()
    assert token is not None
    async with store.transaction(token) as work:
        for k in numbers:
            at = NOON + timedelta(seconds=k // 2)
            kind = KINDS[k % 2]
            await work.add_incident(incident("demo", f"x{k:03}", kind=kind, ranks=(k % 4,), opened_at=at))
            await work.add_reconfiguration(
                reconfiguration(
                    "demo",
                    f"y{k:03}",
                    incident_id=f"x{k:03}",
                    new_epoch=10 + k,
                    status=ReconfigurationStatus.APPLIED,
                    created_at=at,
                )
            )
    await store.close()


async def pages(http: httpx.AsyncClient, path: str, **parameters: Any) -> list[list[str]]:
    """Ids, page by page, by following the `Link` header."""
    found = []
    response = await http.get(path, params=parameters)
    while True:
        assert response.status_code == 200, response.text
        found.append([row["id"] for row in response.json()])
        if "next" not in response.links:
            return found
        response = await http.get(response.links["next"]["url"])


async def test_pages_join_to_the_whole_list(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    await add(gateway.database_url, range(1, 12))
    for path in ("/api/v1/incidents", "/api/v1/reconfigurations"):
        (whole,) = await pages(http, path)
        assert len(whole) == 12
        for sort, expected in (("oldest", whole), ("newest", whole[::-1])):
            parts = await pages(http, path, limit=5, sort=sort)
            assert [len(part) for part in parts] == [5, 5, 2]
            assert list(chain(*parts)) == expected


async def test_rows_that_arrive_between_pages_shift_nothing(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    await add(gateway.database_url, range(1, 5))
    first = await http.get("/api/v1/incidents", params={"limit": 3, "sort": "newest"})
    await add(gateway.database_url, range(50, 53))
    second = await http.get(first.links["next"]["url"])
    seen = [row["id"] for row in first.json() + second.json()]
    assert seen == ["x004", "x003", "x002", "x001", "i1"]


async def test_filters(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    await add(gateway.database_url, range(1, 9))

    async def ids(path: str, **parameters: Any) -> list[str]:
        return list(chain(*await pages(http, f"/api/v1/{path}", **parameters)))

    assert await ids("incidents", device=2) == ["x002", "x006"]
    assert await ids("incidents", kind="worker_frozen") == ["x001", "x003", "x005", "x007"]
    assert await ids("incidents", state="closed") == ["i1"]
    assert await ids("reconfigurations", device=3) == ["r1", "y003", "y007"]
    assert await ids("reconfigurations", kind="worker_frozen", device=1) == ["y001", "y005"]
    assert await ids("reconfigurations", status="rejected") == []
    since = (NOON + timedelta(seconds=3)).isoformat()
    assert await ids("reconfigurations", since=since) == ["y006", "y007", "y008"]
    assert await ids("reconfigurations", until=since, job="demo", mode="recovery") == [
        "r1",
        *(f"y{k:03}" for k in range(1, 6)),
    ]
    assert (await http.get("/api/v1/incidents/x002")).json()["ranks"] == [2]


@pytest.mark.parametrize("query", ["cursor=abc", "cursor=%ff", "since=2026-01-01T00:00:00", "sort=best", "limit=1001"])
async def test_bad_queries_are_named(http: httpx.AsyncClient, query: str) -> None:
    response = await http.get(f"/api/v1/incidents?{query}")
    assert response.status_code == 422
    assert query.partition("=")[0] in response.json()["detail"]


async def test_audit_joins_request_and_answer(gateway: TestGateway, http: httpx.AsyncClient) -> None:
    store = Store(gateway.database_url)
    token = await store.lease(holder="seed", ttl_s=60).acquire()
    assert token is not None
    async with store.transaction(token) as work:
        for n, accepted in ((1, True), (2, None)):
            bodies: list[Any] = [ActionRequested(action="RequestStop", actor=f"a{n}", role="operate", reason="why")]
            if accepted is not None:
                bodies.append(ActionAnswered(action="RequestStop", actor=f"a{n}", accepted=accepted))
            for body in bodies:
                await work.record_event(
                    Envelope.of(body, job="demo", source="gateway", incarnation="g", correlation_id=f"c{n}")
                )
    await store.close()
    newest, oldest = (await http.get("/api/v1/audit")).json()
    assert (newest["actor"], newest["accepted"]) == ("a2", None)
    assert (oldest["actor"], oldest["accepted"], oldest["reason"]) == ("a1", True, "why")
    (again,) = (await http.get("/api/v1/audit", params={"before": newest["sequence"]})).json()
    assert again["actor"] == "a1"
    names = [e["name"] for e in (await http.get("/api/v1/events", params={"limit": 2})).json()]
    assert names == ["ActionRequested", "ActionAnswered"]
