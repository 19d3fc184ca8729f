"""An operator's day: `up`, `train`, `events`, `status`, `plan`, `inject`, `history`, `verify`, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.waiting import wait_for_blocking

JOB = """
name = "day"
iterations = 60
dtype = "float64"
"""
START_S = 90.0


class Operator:
    """Runs `resihp` commands in a home of their own; ends what still runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "RESIHP_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        self._running: list[subprocess.Popen[str]] = []

    def run(self, *arguments: str, code: int = 0) -> str:
        """A command to its end; its standard output."""
        done = subprocess.run(
            self._command(arguments), env=self.environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """A command in the background; its output goes to `<name>.log`."""
        with (self.folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                self._command(arguments), env=self.environment, stdout=log, stderr=subprocess.STDOUT, text=True
            )
        self._running.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Whole lines of an `events --json` command."""
        text = self.log(name)
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def info(self) -> dict[str, Any]:
        home = self.folder / "home"
        found: dict[str, Any] = json.loads(
            (home / "runs" / (home / "latest").read_text().strip() / "run.json").read_text()
        )
        return found

    def end(self) -> None:
        for process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "resihp_cli", *arguments]


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    made = Operator(tmp_path)
    yield made
    made.end()


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_a_day(operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    system = operator.start("up", "up")
    wait_for_blocking(lambda: "gateway  http" in operator.log("up"), START_S, what="up")
    assert "no job yet" in operator.run("status")
    operator.start("events", "events", "--follow", "--json", "--wait", "30")
    training = operator.start(
        "train", "train", str(tmp_path / "job.toml"), "--headless", "--json", str(tmp_path / "out.json")
    )

    wait_for_blocking(lambda: "/60  epoch 1" in operator.log("train"), START_S, what="an iteration")
    status = json.loads(operator.run("status", "--json"))
    pids = {d["rank"]: d["live_pid"] for d in status["devices"]}
    assert len(set(pids.values())) == 8
    assert all(psutil.pid_exists(pid) for pid in pids.values())

    # A live change: one stage pair of TP 2 for replica 0, and TP 1 with one standby for replica 1's first stage.
    plan = json.loads(operator.run("plan", "show", "--json"))
    stage = plan["replicas"][1]["stages"][0]
    plan["standby"], stage["ranks"], stage["weights"] = [stage["ranks"][1]], stage["ranks"][:1], [1]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert "applied in" in operator.run("plan", "apply", str(tmp_path / "plan.json"), "--reason", "try TP 1")

    # A failure: the event arrives within a second of the kill.
    struck = time.time()
    os.kill(pids[7], signal.SIGKILL)

    def lost() -> list[dict[str, Any]]:
        return [e for e in operator.events("events") if e["name"] == "WorkerLost"]

    wait_for_blocking(lost, 30, what="WorkerLost")
    assert lost()[0]["body"]["verdict"]["ranks"] == [7]
    assert time.time() - struck < 10  # a hang bound; the promised second is measured in benchmarks
    wait_for_blocking(lambda: "ReconfigurationApplied" in operator.log("events"), 60, what="recovery")
    operator.run("inject", "freeze", "0")
    operator.run("inject", "kill", "7", code=2)  # it is lost already
    stage["ranks"] = [0]
    (tmp_path / "wrong.json").write_text(json.dumps(plan))
    operator.run("plan", "apply", str(tmp_path / "wrong.json"), code=2)  # rank 0 would be used twice
    assert training.wait(200) == 0, operator.log("train")

    document = json.loads((tmp_path / "out.json").read_text())
    assert document["holds"]
    assert [r["rank"] for r in document["recoveries"]] == [7, 0]
    assert len(document["planned_changes"]) == 1
    after = {d["rank"]: d["pid"] for d in json.loads(operator.run("status", "--json"))["devices"]}
    assert after == pids
    told = json.loads(operator.run("history", "--json"))
    operator_change = next(r for r in told["reconfigurations"] if r["mode"] == "planned")
    assert operator_change["reason"] == "try TP 1"
    assert operator_change["new_plan"]["plan"]["standby"] == plan["standby"]

    # Everything ends with Ctrl-C, in order; the history stays.
    everybody = [*psutil.Process(system.pid).children(recursive=True)]
    assert len(everybody) >= 5
    system.send_signal(signal.SIGINT)
    assert system.wait(60) == 0
    _, alive = psutil.wait_procs(everybody, timeout=120)
    assert alive == []
    assert json.loads(operator.run("history", "--json"))["reconfigurations"] == told["reconfigurations"]
    stored = [json.loads(line) for line in operator.run("events", "--json").splitlines()]
    assert {"WorkerLost", "WorkerFrozen", "JobFinished"} <= {e["name"] for e in stored}
    verified = json.loads(operator.run("verify", "--json", "-"))
    assert verified["holds"]
    assert verified["max_abs_diff"] <= 1e-9


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_services_come_back_and_nothing_outlives_a_killed_supervisor(operator: Operator) -> None:
    system = operator.start("up", "up", "--devices", "2")
    wait_for_blocking(lambda: "gateway  http" in operator.log("up"), START_S, what="up")
    before = operator.info()["pids"]
    assert set(before) == {"nats", "detector", "scheduler", "gateway", "agent-n0"}
    for name in ("nats", "detector", "scheduler", "gateway"):
        os.kill(before[name], signal.SIGKILL)

    def all_back() -> bool:
        now = operator.info()["pids"]
        return all(now[name] != before[name] and psutil.pid_exists(now[name]) for name in before if name != "agent-n0")

    wait_for_blocking(all_back, START_S, what="restarts")
    assert operator.info()["pids"]["agent-n0"] == before["agent-n0"]
    wait_for_blocking(lambda: _doctor_is_well(operator), START_S, what="healthy again")
    everybody = [*psutil.Process(system.pid).children(recursive=True)]
    system.kill()
    system.wait()
    _, alive = psutil.wait_procs(everybody, timeout=120)
    assert alive == []


def _doctor_is_well(operator: Operator) -> bool:
    done = subprocess.run(
        [sys.executable, "-m", "resihp_cli", "doctor", "--json"],
        env=operator.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return bool(json.loads(done.stdout)["ok"])
