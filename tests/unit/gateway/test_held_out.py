"""The loss on held-out text, and checkpoints that could not be written: in status, history and words."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from resihp_cli.commands.history import run_history
from resihp_cli.view.tables import job_table
from resihp_gateway.models import JobView
from resihp_messages import Envelope, event
from resihp_messages.envelope import Body
from resihp_store import Store
from support.gateway import TestGateway, open_gateway


async def record(url: str, *bodies: Body) -> None:
    store = Store(url)
    lease = store.lease(holder="again", ttl_s=60)
    token = await lease.acquire() or await store.lease(holder="seed", ttl_s=60).acquire()
    assert token is not None
    async with store.transaction(token) as work:
        for body in bodies:
            await work.record_event(Envelope.of(body, job="demo", source="agent-n0", incarnation="a" * 32))
    await store.close()


def evaluation(iteration: int, loss: float | None) -> event.EvaluationFinished:
    return event.EvaluationFinished(node="n0", rank=0, iteration=iteration, loss=loss, tokens=512, seconds=0.25)


FAILED = event.CheckpointFailed(node="n0", rank=2, iteration=9, path="/ckpt", error="No space left on device")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[TestGateway]:
    async with open_gateway(tmp_path) as opened:
        yield opened


async def test_status_has_the_newest(gateway: TestGateway) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app), base_url="http://gateway") as http:
        assert (await http.get("/api/v1/jobs/demo")).json()["held_out"] is None
        await record(gateway.database_url, evaluation(5, 3.5), evaluation(10, 3.25))
        assert (await http.get("/api/v1/jobs/demo")).json()["held_out"] == {"iteration": 10, "loss": 3.25}
        (job,) = (await http.get("/api/v1/jobs")).json()
    out = io.StringIO()
    Console(file=out, width=160).print(job_table([JobView.model_validate(job)]))
    assert "3.2500 @10" in out.getvalue()


async def test_a_loss_that_is_not_finite_is_shown_as_such(gateway: TestGateway) -> None:
    await record(gateway.database_url, evaluation(5, None))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app), base_url="http://gateway") as http:
        assert (await http.get("/api/v1/jobs/demo")).json()["held_out"] == {"iteration": 5, "loss": None}


def test_history_tells_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    async def prepare() -> str:
        async with open_gateway(tmp_path) as opened:
            await record(opened.database_url, evaluation(5, 3.5), FAILED)
            return opened.database_url

    url = asyncio.run(prepare())
    assert run_history(None, form="json", job=None, run=None, database=url) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(e["iteration"], e["loss"]) for e in document["evaluations"]] == [(5, 3.5)]
    assert [(f["iteration"], f["rank"], f["error"]) for f in document["failed_checkpoints"]] == [(9, 2, FAILED.error)]
    assert run_history(None, form="table", job=None, run=None, database=url) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "held-out loss 3.5000 after iteration 5 (512 tokens, 250 ms)" in shown
    assert "checkpoint of iteration 9 not written: rank 2 on n0: No space left on device; training goes on" in shown
