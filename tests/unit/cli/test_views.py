"""Words, tables, live screen, plain lines, report."""

from __future__ import annotations

import io
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from resihp_cli.client import GatewayClient
from resihp_cli.outcome import judge
from resihp_cli.view.live import LiveView, headline
from resihp_cli.view.plain import PlainView
from resihp_cli.view.report import print_report
from resihp_cli.view.tables import clock, device_table, history_table
from resihp_cli.watch import JobWatch
from resihp_cli.worker_probe import WorkerProbe
from resihp_gateway.action_words import _WORDS
from resihp_gateway.models import (
    DeviceView,
    EventView,
    IncidentView,
    IterationView,
    JobView,
    Position,
    ReconfigurationView,
)
from resihp_gateway.wording import _WRITERS, describe, exit_reason, milliseconds, size
from resihp_messages import Body, Kind, request
from support.gateway import PHASES, iteration
from support.run_facts import facts
from support.store import NOON, incident, reconfiguration


def event(name: str, body: dict[str, Any], sequence: int = 1) -> EventView:
    return EventView(
        sequence=sequence, message_id="m", name=name, job="demo", epoch=1, source="s", occurred_at=NOON, body=body
    )


LOST = event(
    "WorkerLost",
    {
        "evidence": {"detect_s": 0.0042},
        "verdict": {"fault": "worker_lost", "ranks": [3], "node": "n0", "p": 0.0, "confidence": 1.0},
        "advice": "exclude it",
    },
)
APPLIED = event(
    "ReconfigurationApplied",
    {
        "reconfiguration_id": "r1",
        "new_digest": "0" * 64,
        "phases_s": PHASES,
        "bytes_moved": 1_234_567,
        "proof": {"a": True},
    },
)


def text(renderable: object, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(renderable)
    return out.getvalue()


def watch() -> JobWatch:
    found = JobWatch(GatewayClient("http://127.0.0.1:1"), "demo", WorkerProbe())
    found.job = JobView(job="demo", state="running", epoch=2, iterations=20, committed=15)
    found.devices = [
        DeviceView(
            rank=r,
            node="n0",
            slot=r,
            state="lost" if r == 3 else "healthy",
            p=0.0 if r == 3 else 1.0,
            pid=100 + r,
            position=None if r == 3 else Position(replica=r // 4, stage=r % 4 // 2, tp_index=r % 2),
            worker_state="training",
            iteration=15,
        )
        for r in range(8)
    ]
    found.iterations = [IterationView.model_validate(iteration(k)) for k in range(1, 16)]
    found.events = [LOST, APPLIED]
    return found


def test_every_event_has_a_sentence() -> None:
    events = {name.partition(".")[0] for name, body in Body.registry.items() if body.kind is Kind.EVENT}
    assert events == set(_WRITERS)


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (LOST, "R0·S1·T1 (rank 3) stopped: noticed on n0 within 4.2 ms"),
        (APPLIED, "training goes on after 600 ms, 1.23 MB moved, proof holds"),
        (event("WorkerExited", {"rank": 1, "pid": 9, "exit_code": -9}), "rank 1: process 9 killed by SIGKILL"),
        (event("JobFailed", {"reason": "no plan"}), "job failed: no plan"),
        (event("SomethingNew", {}), "SomethingNew"),
    ],
)
def test_sentences(shown: EventView, words: str) -> None:
    assert describe(shown, {3: "R0·S1·T1 (rank 3)"}) == words


def test_failed_proof_is_shouted() -> None:
    failed = APPLIED.model_copy(update={"body": {**APPLIED.body, "proof": {"samples_once": False}}})
    assert "PROOF FAILED: samples_once" in describe(failed)


def test_units() -> None:
    assert [milliseconds(v) for v in (None, 0.00312, 0.42, 1.236)] == ["-", "3.12 ms", "420 ms", "1.24 s"]
    assert [size(v) for v in (None, 12, 1500, 2_500_000, 3 * 10**12)] == ["-", "12 B", "1.5 kB", "2.5 MB", "3 TB"]
    assert [exit_reason(c) for c in (None, 1, -15, -200)] == [
        "ended, exit code unknown",
        "ended with exit code 1",
        "killed by SIGTERM",
        "killed by signal 200",
    ]


def test_device_table_names_the_dead() -> None:
    lines = text(device_table(watch().devices)).splitlines()
    row = next(line for line in lines if line.strip().startswith("3 "))
    assert "stopped" in row
    assert "0.00" in row
    assert "R1·S1·T1" in lines[-1]


def test_live_screen() -> None:
    followed = watch()
    view = LiveView(followed, Console(file=io.StringIO(), width=140))
    screen = text(view.render())
    assert headline(followed) == "1 of 8 devices stopped, 7 in work or standing by"
    for words in ("1 of 8 devices stopped", "iteration 15/20", "tok/s", "training goes on after 600 ms"):
        assert words in screen
    followed.stale = "gateway away"
    assert "picture may be old" in text(view.render())
    followed.devices = followed.devices[:3]
    assert headline(followed) == "All 3 devices healthy"


def test_plain_lines_are_few_and_end_with_the_last_iteration() -> None:
    out, now = io.StringIO(), [0.0]
    followed = watch()
    view = PlainView(followed, out, clock=lambda: now[0], every_s=1.0)
    for k in range(1, 21):
        now[0] += 0.3
        view.on_iterations([IterationView.model_validate(iteration(k))])
    view.on_event(LOST)
    view.on_event(event("WorkerExited", {"rank": 3, "pid": 9, "exit_code": -9}))  # the verdict says it already
    lines = out.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("iteration")]) == 6
    assert "  20/20" in lines[-2]
    assert "stopped" in lines[-1]


@pytest.mark.parametrize(
    ("action", "parameters", "words"),
    [
        ("RequestHold", {"for_s": 0}, "the hold to be lifted"),
        ("RequestHold", {"for_s": None}, "no change that can wait until that is lifted"),
        ("RequestHold", {"for_s": 30.0}, "no change that can wait for 30 s"),
        ("RequestEvict", {"ranks": [5, 6]}, "the eviction of ranks 5, 6"),
        ("RequestThreshold", {"name": "min_gain", "value": 0.05}, "min_gain = 0.05"),
        ("RequestThreshold", {"name": "min_gain", "value": None}, "min_gain = its default"),
        ("RequestMode", {}, "RequestMode"),  # of another version
        ("RequestTea", {}, "RequestTea"),
    ],
)
def test_what_operators_ask_for_is_told_in_words(action: str, parameters: dict[str, Any], words: str) -> None:
    body = {"actor": "alice", "action": action, "parameters": parameters}
    assert describe(event("ActionRequested", {**body, "reason": "operator"})) == f"alice asks for {words}"
    assert describe(event("ActionRequested", {**body, "reason": "upload"})) == f"alice asks for {words}: upload"


def test_every_request_has_words() -> None:
    for kind in request.__dict__.values():
        if isinstance(kind, type) and issubclass(kind, Body) and "Request" in kind.__name__ and kind.__name__[0] != "_":
            assert kind.__name__ in _WORDS


def test_history_table() -> None:
    record = reconfiguration("demo", incident_id="i1", status="applied", phases_s=PHASES, bytes_moved=9)
    shown = text(
        history_table([ReconfigurationView.model_validate(record)], [IncidentView.model_validate(incident("demo"))]),
        200,
    )
    for words in ("rank 3 stopped", "R1.S0 TP 2 -> 1", "applied", "600 ms", "4 ms"):
        assert words in shown


def test_history_table_fits_a_terminal_of_80_columns() -> None:
    """What is read first stays on one line; words wrap."""
    values = {"incident_id": "i1", "difference": "R0.S1 TP 2 -> 1; micro-batches 4+4 -> 3+5"}
    changes = [
        reconfiguration("demo", id=f"c02af31e{k}", created_at=NOON + timedelta(days=k), **values) for k in (0, 1)
    ]
    views = [ReconfigurationView.model_validate(change) for change in changes]
    shown = text(history_table(views, [IncidentView.model_validate(incident("demo"))], 80), 80)
    assert shown.count("c02af31e  ") == 2
    assert "detect" not in shown
    for k in range(2):
        assert clock(NOON + timedelta(days=k), dated=True) in shown  # of two days: with the date


def test_the_terminal_shows_the_time_of_whoever_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    at = datetime(2026, 5, 4, 23, 30, 15, tzinfo=UTC)
    try:
        monkeypatch.setenv("TZ", "JST-9")
        time.tzset()
        assert clock(at) == "08:30:15"
        assert clock(at, dated=True) == "05-05 08:30:15"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_report_tells_phases_and_proof() -> None:
    out = io.StringIO()
    print_report(Console(file=out, width=140), judge(facts()))
    for words in ("Rank 3 was lost", "detect", "600 ms", "200 of 200 used exactly once", "Everything asked for holds"):
        assert words in out.getvalue()
