"""`GET /api/v1/jobs/{job}/decisions`, and the table that the command line makes of it."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
from rich.console import Console

from resihp_cli.client import GatewayClient
from resihp_cli.commands.govern import decision_table
from resihp_store import Store, decisions
from support.gateway import open_gateway
from support.store import decision


async def test_decisions_newest_first(tmp_path: Path) -> None:
    async with open_gateway(tmp_path) as opened:
        store = Store(opened.database_url)
        token = await store.lease(holder="seed", ttl_s=60).acquire()
        assert token is not None
        async with store.transaction(token) as work:
            await decisions.add_decision(work, decision("demo", reconfiguration_id="r1"))
        await store.close()
        transport = httpx.ASGITransport(opened.app)
        async with GatewayClient("http://gateway", transport=transport) as client:
            (found,) = await client.decisions("demo")
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            assert (await http.get("/api/v1/jobs/demo/decisions", params={"state": "acted"})).json() == []
            assert (await http.get("/api/v1/jobs/nobody/decisions")).status_code == 404
    assert (found.id, found.action, found.outcome) == ("d1", "advise", "open")
    assert (found.reconfiguration_id, found.achieved_tokens_per_s) == ("r1", 760.0)
    assert found.question["speeds"] == {"5": 0.5}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(decision_table([found]))
    text = console.export_text()
    assert "rank 5 slow (p 0.50)" in text
    assert "800" in text
