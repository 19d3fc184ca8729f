"""One line about a running job, from what the API knows."""

from __future__ import annotations

from datetime import UTC, datetime

from resihp_cli.commands.who_is_slow import of_facts
from resihp_gateway.models import DeviceView, IncidentView

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def device(rank: int, state: str = "healthy") -> DeviceView:
    return DeviceView(rank=rank, node="n0", slot=rank, state=state, p=1.0)


def slow(rank: int, p: float, *, closed: bool = False) -> IncidentView:
    return IncidentView(
        id=f"i{rank}",
        job="demo",
        kind="device_slow",
        ranks=(rank,),
        node="n1",
        evidence={"first_iteration": 30, "iteration": 32},
        verdict={"p": p},
        opened_at=NOW,
        closed_at=NOW if closed else None,
    )


def test_the_slow_and_the_stopped_are_named_and_the_recovered_are_not() -> None:
    devices = [device(0), device(3, "lost"), device(5), device(6)]
    line, is_slow = of_facts("demo", devices, [slow(5, 0.5), slow(6, 0.7, closed=True), slow(3, 0.4)])
    assert line == "rank 5 (n1) is at 0.50 of its speed since 30; stopped: 3"
    assert is_slow


def test_nobody() -> None:
    assert of_facts("demo", [device(0)], []) == ("nobody is slow in demo", False)
