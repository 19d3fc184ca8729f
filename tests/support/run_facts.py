"""The facts of a run as the CLI collects them, with a process table that a test writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from resihp_cli.outcome import RunFacts
from resihp_cli.worker_probe import Identity, WorkerProbe
from resihp_gateway.models import DeviceView, IncidentView, IterationView, JobView, PlanView, ReconfigurationView
from resihp_messages import JobSpec
from support.gateway import AFTER_LOSS, HEALTHY, PHASES, iteration
from support.store import NOON, incident, reconfiguration


class Table:
    """A process table that a test writes."""

    def __init__(self) -> None:
        self.started: dict[int, float] = {}

    def identity(self, pid: int) -> Identity | None:
        return (pid, self.started[pid]) if pid in self.started else None

    def peak_rss_bytes(self, pid: int) -> int:
        return pid << 20


def probe(ranks: int = 8) -> tuple[WorkerProbe, Table]:
    table = Table()
    table.started = {100 + rank: 1.0 for rank in range(ranks)}
    seen = WorkerProbe(table)
    seen.observe({rank: 100 + rank for rank in range(ranks)}, iteration=5)
    del table.started[103]
    seen.observe({rank: 100 + rank for rank in range(ranks)}, iteration=18)
    return seen, table


def facts(**changes: Any) -> RunFacts:
    """A run of 20 iterations in which rank 3 was killed in iteration 15 and everything holds."""
    spec = JobSpec.model_validate(
        {"iterations": 20, "dtype": "float64", "faults": [{"kind": "kill", "rank": 3, "iteration": 15}]}
    )
    applied = reconfiguration(
        "demo", incident_id="i1", status="applied", phases_s=PHASES, proof={"samples_once": True}, bytes_moved=7
    )
    good = RunFacts(
        spec=spec,
        job=JobView(
            job="demo", state="finished", epoch=2, iterations=20, committed=20, samples_expected=200, samples_once=200
        ),
        devices=[
            DeviceView(rank=r, node="n0", slot=r, state="lost" if r == 3 else "finished", p=1.0) for r in range(8)
        ],
        incidents=[IncidentView.model_validate(incident("demo", closed_at=NOON))],
        reconfigurations=[ReconfigurationView.model_validate(applied)],
        plans=[PlanView(epoch=p.epoch, digest=p.digest, plan=p.to_dict()) for p in (HEALTHY, AFTER_LOSS)],
        iterations=[IterationView.model_validate(iteration(k)) for k in range(1, 21)],
        probe=probe()[0],
        parity={"max_abs_diff": 1e-12},
        parity_asked=True,
    )
    return replace(good, **changes)
