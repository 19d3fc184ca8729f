"""Evict, readmit, undo, thresholds through REST and the command line; and how a job is governed now."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
from rich.console import Console

from resihp_cli.client import GatewayClient
from resihp_cli.commands.steer import control_text
from resihp_messages.event import ActionRequested
from resihp_messages.request import Reply, RequestEvict, RequestReadmit, RequestThreshold, RequestUndo
from resihp_store import ControlRecord, Store, decisions
from support.gateway import open_gateway, play_scheduler
from support.store import NOON, decision


async def test_requests_reach_the_scheduler_with_their_reason(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as opened:
        asked = [
            await play_scheduler(opened, verb, Reply(accepted=True, reconfiguration_id="r9"))
            for verb in ("RequestEvict", "RequestReadmit", "RequestUndo", "RequestThreshold")
        ]
        transport = httpx.ASGITransport(opened.app)
        async with GatewayClient("http://gateway", transport=transport) as client:
            answer = await client.act("demo", "evict", {"ranks": [5], "reason": "bad link"})
            assert answer.reconfiguration_id == "r9"
            await client.act("demo", "readmit", {"ranks": [5], "reason": "new cable"})
            await client.act("demo", "undo", {"reason": "slower"})
            await client.act("demo", "threshold", {"name": "min_gain", "value": 0.05, "reason": "evaluation"})
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway/api/v1/jobs/demo") as http:
            refused = await http.post("/threshold", json={"name": "min_gain", "value": -1})
            assert (refused.status_code, "between 0 and 10" in refused.json()["detail"]) == (422, True)
            assert (await http.post("/threshold", json={"name": "luck", "value": 1})).status_code == 422
            assert (await http.post("/evict", json={"ranks": []})).status_code == 422
        trail = [e.body for e in opened.broker_events() if isinstance(e.body, ActionRequested)]
    assert [e.body for envelopes in asked for e in envelopes] == [
        RequestEvict(ranks=(5,), reason="bad link"),
        RequestReadmit(ranks=(5,), reason="new cable"),
        RequestUndo(reason="slower"),
        RequestThreshold(name="min_gain", value=0.05, reason="evaluation"),
    ]
    assert [(b.action, b.reason) for b in trail] == [
        ("RequestEvict", "bad link"),
        ("RequestReadmit", "new cable"),
        ("RequestUndo", "slower"),
        ("RequestThreshold", "evaluation"),
    ]
    assert trail[0].parameters == {"ranks": [5]}


async def test_how_a_job_is_governed(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as opened:
        store = Store(opened.database_url)
        token = await store.lease(holder="seed", ttl_s=60).acquire()
        assert token is not None
        transport = httpx.ASGITransport(opened.app)
        async with GatewayClient("http://gateway", transport=transport) as client:
            plain = await client.control("demo")
            async with store.transaction(token) as work:
                record = ControlRecord(
                    "demo",
                    decisions.DecisionMode.ADVISE,
                    is_held=True,
                    held_until=NOON,
                    breaker="6 automatic changes within 120 s",
                    evicted=frozenset({7, 5}),
                    thresholds={"min_gain": 0.05},
                )
                await decisions.put_control(work, record)
                await decisions.add_decision(work, decision("demo", reconfiguration_id=None))
            found = await client.control("demo")
        await store.close()
    assert (plain.mode, plain.held, plain.breaker, plain.evicted, plain.decision) == ("act", False, "", (), None)
    assert all(t.value == t.default for t in plain.thresholds)
    assert (found.mode, found.held, found.evicted) == ("advise", False, (5, 7))  # that protection is over
    assert {t.name: t.value for t in found.thresholds if t.value != t.default} == {"min_gain": 0.05}
    assert found.decision is not None
    assert (found.decision.id, found.decision.action) == ("d1", "advise")
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(control_text("demo", found))
    text = console.export_text()
    for part in ("mode advise", "breaker tripped: 6 automatic", "evicted: 5, 7", "waits for you: d1", "0.05*"):
        assert part in text
