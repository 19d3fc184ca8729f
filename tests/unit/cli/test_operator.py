"""`top`, `history --format`, `report`, `notify test`, `token`: on stored and on played facts."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import httpx
import pytest
from rich.console import Console

from resihp_cli.__main__ import main
from resihp_cli.client import GatewayClient
from resihp_cli.commands.top import _top
from resihp_cli.errors import CliError
from resihp_cli.view.top import Picture, render
from resihp_gateway.access import Role, TokenFile
from resihp_store.revisions import upgrade
from support.dashboard import JOB, SMALL, dashboard
from support.gateway import open_gateway, seed


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('stored') / 'stored.db'}"

    async def make() -> None:
        await upgrade(url)
        await seed(url)

    asyncio.run(make())
    return url


def test_history_as_csv_and_markdown(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--db", database, "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["id"], row["cause"], row["ranks"], row["proof_holds"]) == ("r1", "rank 3 stopped", "3", "True")
    assert (float(row["pause_s"]), float(row["achieved_tokens_per_s"])) == (0.6, 760.0)
    assert main(["history", "--db", database, "--format", "markdown"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[2].startswith("| `r1` | 2026-01-02 12:00:00 | rank 3 stopped |")
    assert main(["history", "--db", database, "--format", "xml"]) == 2
    assert "expected one of table, json, csv, markdown" in capsys.readouterr().err


def test_report_as_one_html_page(database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "incident.html"
    assert main(["report", "r1", "--db", database, "--out", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(path)
    page = path.read_text()
    for words in ("rank 3 stopped", "600 ms", "exit_code", "drop replica", "holds", "-5.0% against predicted"):
        assert words in page, words
    assert page.count("<svg") == 2
    assert "src=" not in page  # nothing is loaded from anywhere


def test_report_as_markdown_with_pictures_beside(database: str, tmp_path: Path) -> None:
    path = tmp_path / "incident.md"
    assert main(["report", "r1", "--db", database, "--out", str(path)]) == 0
    text = path.read_text()
    for name in ("plans", "phases"):
        assert f"(incident-{name}.svg)" in text
        ElementTree.parse(tmp_path / f"incident-{name}.svg")
    assert "| redo | 400 ms | the interrupted iteration, again |" in text
    assert main(["report", "zz", "--db", database]) == 2
    assert main(["report", "r1", "--db", database, "--out", "/nowhere/x.html"]) == 2


class Receiver(BaseHTTPRequestHandler):
    status = 200
    seen: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        Receiver.seen.append(self.headers.get("webhook-signature", ""))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_notify_test_says_what_each_receiver_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        file = tmp_path / "webhooks.toml"
        url = f"http://127.0.0.1:{server.server_port}/"
        file.write_text(
            f'[[webhook]]\nname = "good"\nurl = "{url}"\nsecret = "0123456789abcdef"\n'
            '[[webhook]]\nname = "gone"\nurl = "http://127.0.0.1:9/"\n'
        )
        assert main(["notify", "test", "--file", str(file)]) == 1
        good, gone = capsys.readouterr().out.splitlines()
        assert "generic, signed: taken, status 200" in good
        assert "NOT taken" in gone
        assert Receiver.seen[0].startswith("v1,")
        assert main(["notify", "test", "--file", str(file), "--name", "good"]) == 0
        assert main(["notify", "test", "--file", str(file), "--name", "other"]) == 2
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_tokens_are_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "tokens.json")]
    assert main(["token", "list", *file]) == 0
    assert "no token in" in capsys.readouterr().out
    assert main(["keys", "list", "--dir", str(tmp_path)]) == 0
    assert "`resihp keys init` makes them" in capsys.readouterr().out
    assert main(["token", "create", "alice", "--role", "operate", *file]) == 0
    token = capsys.readouterr().out.strip()
    assert token.startswith("rhp_")
    assert [e.role for e in TokenFile(tmp_path / "tokens.json").read()] == [Role.OPERATE]
    assert main(["token", "list", *file]) == 0
    shown = capsys.readouterr().out
    assert "alice" in shown
    assert token not in shown
    assert main(["token", "create", "alice", *file]) == 2
    assert main(["token", "create", "bob", "--role", "king", *file]) == 2
    assert main(["token", "revoke", "alice", *file]) == 0
    assert main(["token", "revoke", "alice", *file]) == 2


def picture() -> Picture:
    found = Picture("demo")
    stages = [{"layers": [0, 4], "ranks": [0, 1], "weights": [1, 1]}, {"layers": [4, 8], "ranks": [2], "weights": [1]}]
    facts: dict[str, Any] = {
        "job": {"state": "running", "committed": 7, "iterations": 40, "epoch": 2, "virtual_clock": True},
        "map": {"replicas": [{"num_micro_batches": 8, "stages": stages}], "ghosts": {"3": [0, 1, 1]}, "pool": []},
        "health": base64.b64encode(bytes([99, 55, 85, 255])).decode(),
        "rates": {"now": 760.0, "healthy": 1000.0, "bound": 800.0},
        "points": {"whole": True, "points": [[1, 1, 1000.0, 2.0], [2, 1, None, 2.0], [3, 2, 760.0, 2.0]]},
        "incidents": [],
        "reconfigurations": [],
    }
    for name, value in facts.items():
        found.note(name, value)
    return found


def test_top_shows_the_same_facts_as_the_page() -> None:
    found = picture()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(found, 100))
    text = console.export_text()
    for words in (
        *("3 of 4 devices need attention", "virtual clock, iteration 7/40", "■▼ ■✕", "slow 1", "stopped 1"),
        *("760 tokens/s", "76% of healthy, 95% of bound", "nothing happened so far"),
    ):
        assert words in text, words
    found.note("points", {"whole": False, "points": [[4, 2, 800.0, 1.0]]})
    assert [p[0] for p in found.points] == [1, 2, 3, 4]
    assert "connecting" in str(render(Picture("x"), 80).renderables[0])  # type: ignore[union-attr]


async def test_top_reads_the_stream_of_a_running_gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with dashboard(tmp_path, SMALL) as (server, _):
        assert await _top(server.url, None, True) == 0
    text = capsys.readouterr().out
    for words in (
        f"{JOB}  2 of 8 devices need attention",
        "rank 3 stopped",
        "rank 5 slow",
        "R0.S1 TP 2 -> 1",
        "tokens/s",
    ):
        assert words in text, words


async def test_lists_are_read_to_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resihp_cli.client.PAGE", 2)
    async with dashboard(tmp_path, SMALL) as (_, story):
        transport = httpx.ASGITransport(story.gateway.app)
        async with GatewayClient("http://gateway", transport=transport) as client:
            assert [r.new_epoch for r in await client.reconfigurations(JOB)] == [1, 2, 3]
            assert [i.kind for i in await client.incidents(JOB)] == ["worker_lost", "device_slow"]


async def test_a_token_of_the_environment_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    monkeypatch.setenv("RESIHP_TOKEN", file.create("alice", Role.VIEW, datetime.now(UTC)))
    async with open_gateway(tmp_path, tokens_file=str(file.path)) as gateway:
        async with GatewayClient("http://gateway", transport=httpx.ASGITransport(gateway.app)) as client:
            assert [j.job for j in await client.jobs()] == ["demo"]
            with pytest.raises(CliError, match="needs the role operate; alice has view"):
                await client.stop("demo", "no")
        monkeypatch.delenv("RESIHP_TOKEN")
        async with GatewayClient("http://gateway", transport=httpx.ASGITransport(gateway.app)) as client:
            with pytest.raises(CliError, match="asks for a bearer token"):
                await client.jobs()
