"""The local server: start, crash, restart, failure texts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from resihp_bus import LocalNats, ServerError, find_binary
from support.nats import require_nats


def test_keeps_its_port_over_restarts(nats_server: LocalNats) -> None:
    url, pid = nats_server.url, nats_server.pid
    nats_server.restart()
    assert nats_server.alive
    assert nats_server.url == url
    assert nats_server.pid != pid


def test_is_gone_after_stop(nats_server: LocalNats) -> None:
    pid = nats_server.pid
    nats_server.stop()
    assert not nats_server.alive
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    nats_server.stop()
    with pytest.raises(ServerError):
        _ = nats_server.pid


def test_stops_even_when_frozen(nats_server: LocalNats) -> None:
    nats_server.freeze()
    nats_server.stop(timeout_s=5)
    assert not nats_server.alive


def test_a_taken_port_is_one_clear_error(tmp_path: Path) -> None:
    require_nats()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = LocalNats(tmp_path, port=taken.getsockname()[1])
        with pytest.raises(ServerError, match="address already in use"):
            server.start()
        assert not server.alive


def test_without_a_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER_BIN", str(tmp_path / "nothing"))
    assert find_binary() is None
    with pytest.raises(ServerError, match="NATS_SERVER_BIN"):
        LocalNats(tmp_path / "n").start()


def test_url_before_start(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="not started"):
        _ = LocalNats(tmp_path).url


def test_listens_on_loopback_only(nats_server: LocalNats) -> None:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    port = f"{nats_server.port:04X}"
    listening = [line.split()[1] for line in lines if line.split()[3] == "0A" and line.split()[1].endswith(f":{port}")]
    assert listening == [f"0100007F:{port}"]
