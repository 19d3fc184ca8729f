"""The command line itself: help, exit codes, one line on stderr."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from resihp_cli import keys_app
from resihp_cli.__main__ import main
from resihp_cli.app import app, inject_app, model_app, plan_app
from resihp_store import Store
from resihp_store.revisions import upgrade
from support.gateway import AFTER_LOSS, seed

COMMANDS = {
    "run",
    "launch",
    "demo",
    "up",
    "train",
    "status",
    "events",
    "history",
    "verify",
    "doctor",
    "replay",
    "who-is-slow",
    "validate-devices",
    "simulate",
    "whatif",
    "mode",
    "approve",
    "veto",
    "stop",
    "pause",
    "protect",
    "resume",
    "decisions",
    "evict",
    "readmit",
    "undo",
    "threshold",
    "control",
    "top",
    "report",
}


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESIHP_HOME", str(tmp_path / "home"))


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A stored history."""
    import asyncio

    url = f"sqlite+aiosqlite:///{tmp_path / 'stored.db'}"

    async def make() -> None:
        await upgrade(url)
        await seed(url)

    asyncio.run(make())
    return url


def test_surface() -> None:
    assert {c.name or (c.callback and c.callback.__name__) for c in app.registered_commands} == COMMANDS
    assert {c.name for c in inject_app.registered_commands} == {
        *("kill", "freeze", "slow", "slow-link", "corrupt", "restart"),
    }
    assert {c.name for c in model_app.registered_commands} == {"export"}
    assert {c.name for c in plan_app.registered_commands} == {"show", "apply", "init"}
    assert {c.name for c in keys_app.app.registered_commands} == {"init", "list", "remove"}


@pytest.mark.parametrize(
    "command",
    [
        *sorted(COMMANDS),
        "inject kill",
        "inject freeze",
        "model export",
        "plan show",
        "plan apply",
        "plan init",
        "keys init",
    ],
)
def test_every_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"Example: resihp {command}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nothing", "No such command 'nothing'"),
        ("demo --bogus", "No such option: --bogus"),
        ("demo --iterations 0", "--iterations"),
        ("demo --iterations many", "--iterations"),
        ("demo --kill 3", "expected RANK@ITERATION"),
        ("demo --kill 9@5", "rank 9 is not below tp*pp*dp = 8"),
        ("demo --kill 3@99", "iteration 99 is beyond iterations = 40"),
        ("demo --tp 8", "parallel.tp (8) exceeds model.num_kv_heads (4)"),
        ("demo --dtype float16", "dtype"),
        ("demo --data /nowhere", "'/nowhere' does not exist"),
        ("demo --no-fault --kill 3@5", "--no-fault excludes"),
        ("demo --agents 9", "--agents 9 exceeds the number of devices (8)"),
        ("demo --switch none.json@3", "no such file"),
        ("demo --json /nowhere/out.json", "/nowhere does not exist"),
        ("train none.toml", "No such file"),
        ("train", "Missing argument"),
        ("status", "no run found"),
        ("status --url ftp://x", "expected http://"),
        ("history", "no run found"),
        ("events", "no run found"),
        ("events --follow --db x", "--follow needs a running gateway"),
        ("events --name WorkerLots", "no event is called 'WorkerLots'; did you mean WorkerLost?"),
        ("events --follow --name xxxx", "no event is called 'xxxx' (docs/messages.md has all)"),
        ("verify", "no run found"),
        ("model export out", "no run found"),
        ("verify --random 0", "--random"),
        ("verify --random 1 --dtype float16", "--dtype 'float16': expected one of float64, float32"),
        ("verify --random 1 --json /nowhere/out.json", "/nowhere does not exist"),
        ("inject kill 3", "no run found"),
        ("demo --keys --bus nats://h:1", "--keys is for the bus that is started here"),
        ("keys init --agent a.b", "not a name: 'a.b'"),
        ("keys init --rotate nobody", "no identity 'nobody'; there are detector"),
        ("keys init --reader gateway", "the name is taken"),
        ("keys remove agent-n7", "no agent or reader 'agent-n7'"),
        ("replay none.csv", "none.csv: cannot be read as text"),
        ("replay", "Missing argument"),
        ("who-is-slow", "no run found"),
        ("who-is-slow none.csv", "none.csv: cannot be read as text"),
        ("inject maim 3", "No such command 'maim'"),
        ("plan apply none.json", "No such file"),
        ("history --db oracle://x", "unsupported database URL"),
        ("history --db sqlite+aiosqlite:////nowhere/x.db", "behind"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert words in told.err
    assert told.err.startswith("resihp: ")
    assert told.err.count("\n") == 1


def test_unreachable_gateway_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert main(["status", "--url", url]) == 2
    assert f"gateway {url} cannot be reached" in capsys.readouterr().err


def test_history_of_a_stored_database(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--db", database, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (change,) = document["reconfigurations"]
    assert change["incident"]["ranks"] == [3]
    assert change["new_plan"]["digest"] == AFTER_LOSS.digest
    assert change["old_plan"]["plan"]["replicas"][0]["num_micro_batches"] == 4
    assert change["alternatives"][0]["reason"] == "slower"
    assert change["reason"] == "rank 3 lost"
    assert set(change["phases_s"]) == {"detect", "plan", "abort", "rebuild", "move", "redo", "total"}
    assert main(["history", "r1", "--db", database]) == 0
    shown = capsys.readouterr().out
    assert "rank 3 stopped on n0" in shown
    assert "exit_code = -9" in shown
    assert "predicted 800 at the job's pace, achieved 760 (-5%)" in shown
    assert "drop replica: slower" in shown
    assert main(["history", "zz", "--db", database]) == 2
    assert main(["history", "--db", database, "--job", "other"]) == 0
    assert "nothing happened" in capsys.readouterr().out


async def _record(url: str) -> None:
    from support.envelopes import event

    store = Store(url)
    token = await store.lease(holder="again", ttl_s=60).acquire()
    if token is None:
        token = await store.lease(holder="seed", ttl_s=60).acquire()
    assert token is not None
    async with store.transaction(token) as work:
        await work.record_event(event("n0"))
        await work.record_event(event("n1", job="other"))
    await store.close()


def test_stored_events(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    asyncio.run(_record(database))
    assert main(["events", "--db", database, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["body"]["node"] for line in lines] == ["n0", "n1"]
    assert main(["events", "--db", database, "--job", "other"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "node n1 left in order" in line


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    script = (
        "import sys; from resihp_cli.__main__ import main; main(['--help']);"
        "heavy = {'torch', 'sqlalchemy', 'nats', 'fastapi', 'httpx', 'pydantic', 'rich.table'} & set(sys.modules);"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout


def test_what_asks_the_gateway_does_not_load_servers_and_databases() -> None:
    """They took three quarters of the time of `resihp status`."""
    names = ", ".join(
        f"resihp_cli.commands.{name}" for name in ("status", "top", "govern", "steer", "inject", "events")
    )
    heavy = {"fastapi", "sqlalchemy", "nats", "numpy", "torch", "river"}
    program = f"import sys, {names}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []
