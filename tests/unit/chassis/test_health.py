"""Liveness, readiness, and their endpoint."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from resihp_bus import BusStats
from resihp_chassis import Health, HealthServer, ManualClock, Metrics, PortInUse


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class StepClock(ManualClock):
    """A manual clock that is moved without an event loop."""

    def step(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def clock() -> StepClock:
    return StepClock()


@pytest.fixture
def health(clock: StepClock) -> Health:
    return Health(clock, stuck_after_s=2.0)


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    made = HealthServer(health, Metrics("toy").registry, host="127.0.0.1", port=0)
    yield made
    made.stop()


def test_alive_while_the_main_loop_turns(health: Health, clock: StepClock) -> None:
    turn = health.watch("main_loop", 2.0)
    clock.step(1.9)
    assert health.live().ok
    clock.step(0.2)
    assert not health.live().ok
    assert health.live().parts == {"main_loop": "no turn for 2.1 s (limit 2 s)"}
    turn()
    assert health.live().ok


def test_each_watched_loop_counts(health: Health, clock: StepClock) -> None:
    health.watch("relay", 0.5)
    clock.step(1.0)
    report = health.live()
    assert not report.ok
    assert report.parts["main_loop"] == "ok"


def test_ready_only_with_every_dependency(health: Health) -> None:
    state = {"bus": False}
    health.require("bus", lambda: state["bus"])
    health.require("database", lambda: "schema is old")
    assert health.ready().parts == {"state": "starting", "bus": "not available", "database": "schema is old"}
    health.set_state("ready")
    state["bus"] = True
    health.require("database", lambda: True)
    assert health.ready().ok
    health.set_state("stopping")
    assert not health.ready().ok


def test_endpoint(server: HealthServer, health: Health, clock: StepClock) -> None:
    assert get(server.url + "/livez") == (200, '{"ok": true, "main_loop": "ok"}')
    status, text = get(server.url + "/readyz")
    assert (status, json.loads(text)) == (503, {"ok": False, "state": "starting"})
    health.set_state("ready")
    assert get(server.url + "/readyz")[0] == 200
    clock.step(10)
    assert get(server.url + "/livez")[0] == 503
    assert get(server.url + "/nonsense")[0] == 404


def test_metrics_are_exported() -> None:
    metrics = Metrics("toy")
    metrics.counter("handled_messages", "Handled.", ["kind"]).labels("event").inc(3)
    metrics.gauge("leader_flag", "Leader.").set(1)
    metrics.histogram("plan_seconds", "Planning.").observe(0.003)
    stats = BusStats(published=7)
    metrics.export_bus(stats, lambda: True)
    server = HealthServer(Health(ManualClock(), 1.0), metrics.registry, host="127.0.0.1", port=0)
    try:
        status, text = get(server.url + "/metrics")
    finally:
        server.stop()
    assert status == 200
    for line in (
        'resihp_toy_handled_messages_total{kind="event"} 3.0',
        "resihp_toy_leader_flag 1.0",
        'resihp_toy_plan_seconds_bucket{le="0.005"} 1.0',
        "resihp_toy_bus_published_total 7.0",
        "resihp_toy_bus_connected 1.0",
        "process_resident_memory_bytes",
    ):
        assert line in text
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.gauge("leader_flag", "Again.")


def test_a_taken_port_is_one_clear_error(health: Health) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse, match=r"health endpoint 127.0.0.1:\d+: Address already in use"):
            HealthServer(health, CollectorRegistry(), host="127.0.0.1", port=taken.getsockname()[1])


def test_a_host_that_is_not_ours_is_a_clear_error(health: Health) -> None:
    with pytest.raises(PortInUse, match="health endpoint"):
        HealthServer(health, CollectorRegistry(), host="192.0.2.1", port=0)
