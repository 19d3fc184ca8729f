"""The life of a real service process: start, health, drain, exit status, error lines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from resihp_bus import LocalNats
from support.waiting import wait_for_blocking

PROGRAM = """
import asyncio, sys, time
from pydantic_settings import SettingsConfigDict
from resihp_bus import JetStreamBus
from resihp_chassis import Service, ServiceSettings, StartupError, run_service

class ToySettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="RESIHP_TOY_")
    behaviour: str = "good"

class DatabaseDown(Exception):
    pass

async def main(service):
    how = service.settings.behaviour
    if how == "no-database":
        raise DatabaseDown("database sqlite:///x: unable to open\\nsecond line")
    bus = JetStreamBus(service.settings.bus, service.name)
    await bus.connect()
    service.watch_bus(bus)
    service.ready()
    print("ready", flush=True)
    if how == "bug":
        raise RuntimeError("a bug")
    if how == "late-database":
        raise DatabaseDown("gone")
    if how == "blocks":
        time.sleep(3600)
    if how == "fails":
        service.fail("zygote died")
    await service.stopping.wait()
    if how == "stubborn":
        await asyncio.sleep(3600)
    await asyncio.sleep(0.1)
    print("drained", flush=True)
    await bus.close()

sys.exit(run_service("toy", ToySettings, main, startup_errors=(DatabaseDown,)))
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(behaviour: str = "good", **variables: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "RESIHP_TOY_BEHAVIOUR": behaviour,
            "RESIHP_TOY_ANNOUNCE_FILE": str(tmp_path / "announce.json"),
            "RESIHP_BUS_CONNECT_TIMEOUT_S": "1",
            **variables,
        }
        command = [sys.executable, "-W", "error", "-c", PROGRAM]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def announced(tmp_path: Path) -> dict[str, object]:
    path = tmp_path / "announce.json"
    wait_for_blocking(path.exists, 20)
    facts: dict[str, object] = json.loads(path.read_text())
    return facts


def get(url: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_orderly_life(start: Start, nats_server: LocalNats, tmp_path: Path, number: signal.Signals) -> None:
    process = start(RESIHP_BUS_URL=nats_server.url)
    ready(process)
    facts = announced(tmp_path)
    assert facts["pid"] == process.pid
    url = str(facts["health_url"])
    assert get(url + "/livez")[0] == 200
    assert get(url + "/readyz") == (200, {"ok": True, "state": "ok", "bus": "ok"})
    process.send_signal(number)
    out, log = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "drained\n")
    assert [json.loads(line)["event"] for line in log.splitlines()][-1] == "stopped"


def test_readiness_follows_the_bus(start: Start, nats_server: LocalNats, tmp_path: Path) -> None:
    process = start(RESIHP_BUS_URL=nats_server.url)
    ready(process)
    url = str(announced(tmp_path)["health_url"])
    nats_server.kill()
    wait_for_blocking(lambda: get(url + "/readyz") == (503, {"ok": False, "state": "ok", "bus": "not connected"}), 10)
    assert get(url + "/livez")[0] == 200
    nats_server.start()
    wait_for_blocking(lambda: get(url + "/readyz")[0] == 200, 10)


def test_a_blocked_main_loop_is_not_alive(start: Start, nats_server: LocalNats, tmp_path: Path) -> None:
    """The endpoint answers although the loop does not turn."""
    process = start("blocks", RESIHP_BUS_URL=nats_server.url, RESIHP_STUCK_AFTER_S="0.3")
    ready(process)
    url = str(announced(tmp_path)["health_url"])
    wait_for_blocking(lambda: get(url + "/livez")[0] == 503, 10)


def test_a_drain_that_takes_too_long_is_cut(start: Start, nats_server: LocalNats) -> None:
    process = start("stubborn", RESIHP_BUS_URL=nats_server.url, RESIHP_DRAIN_TIMEOUT_S="0.3")
    ready(process)
    process.terminate()
    _, log = process.communicate(timeout=120)
    assert "drain timeout" in log


def test_asked_twice_it_does_not_drain(start: Start, nats_server: LocalNats) -> None:
    process = start("stubborn", RESIHP_BUS_URL=nats_server.url, RESIHP_DRAIN_TIMEOUT_S="600")
    ready(process)
    process.terminate()
    assert process.stderr is not None
    for line in process.stderr:
        if json.loads(line)["event"] == "draining":
            break
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 0


@pytest.mark.parametrize("behaviour", ["bug", "late-database"])
def test_an_error_after_the_start_is_a_bug(start: Start, nats_server: LocalNats, behaviour: str) -> None:
    process = start(behaviour, RESIHP_BUS_URL=nats_server.url)
    _, log = process.communicate(timeout=120)
    assert process.returncode == 1
    last = [json.loads(line) for line in log.splitlines() if "exception" in line][-1]
    assert "Traceback" in last["exception"]


def test_a_failure_from_inside(start: Start, nats_server: LocalNats) -> None:
    process = start("fails", RESIHP_BUS_URL=nats_server.url)
    out, log = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "ready\ndrained\n")
    assert "zygote died" in log


def one_line(process: subprocess.Popen[str]) -> str:
    """The error line of a process that could not start: exit status 2, and everything else in the log is JSON."""
    _, log = process.communicate(timeout=120)
    assert process.returncode == 2
    lines = [line for line in log.splitlines() if not line.startswith("{")]
    assert len(lines) == 1
    return lines[0]


def test_wrong_settings(start: Start) -> None:
    assert one_line(start(RESIHP_TOY_HEALTH_PORT="x")).startswith("resihp toy: RESIHP_TOY_HEALTH_PORT: ")


def test_an_unreachable_bus(start: Start) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{free.getsockname()[1]}"
        line = one_line(start(RESIHP_BUS_URL=url))
    assert line.startswith(f"resihp toy: bus {url}: ")


def test_an_unreachable_database(start: Start) -> None:
    line = one_line(start("no-database"))
    assert line == "resihp toy: database sqlite:///x: unable to open second line"


def test_a_taken_health_port(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = one_line(start(RESIHP_TOY_HEALTH_PORT=str(port)))
    assert line == f"resihp toy: health endpoint 127.0.0.1:{port}: Address already in use"


def test_starting_is_cheap(start: Start, nats_server: LocalNats) -> None:
    """Processor time, not wall time: other programs may run. Measured 0.6 s; the bound finds an import of torch."""
    process = start(RESIHP_BUS_URL=nats_server.url)
    ready(process)
    used = psutil.Process(process.pid).cpu_times()
    assert used.user + used.system < 3.0
    assert time.monotonic() > 0
