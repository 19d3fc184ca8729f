"""30 days of the InfiniteHBD trace (400 servers): goodput of every policy, and throughput over time for the picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.planner.cells import Cells
from benchmarks.planner.settings import SCHEDULES, Setting
from resihp_plan import Cluster, Device
from resihp_plan.planner.lifetime import HOUR, Fault, live, read_node_faults
from resihp_plan.planner.policies import Arena, Outcome, Policy, evaluate

DAYS = 30
START_DAY = 150
TP, PP = 8, 8
"""The fastest degrees for 1,024 healthy devices (`choose_initial`), so that nobody wins by other ones."""
SCHEDULE = SCHEDULES[1]
"""One for everybody: exchanged units of a thousand devices take seconds to simulate."""
WITHOUT_EXCHANGE = (Policy.STATIC, Policy.RESTART, Policy.OOBLECK, Policy.RESIHP)
JOBS: Mapping[int, tuple[Policy, ...]] = {
    400: WITHOUT_EXCHANGE,
    128: (Policy.STATIC, Policy.RESTART, Policy.RECYCLE, Policy.OOBLECK, Policy.RESIHP_PAPER, Policy.RESIHP),
}
"""Servers of the job -> policies. Without slow devices Greyhound and Adaptra equal `restart`, S- variants the plain
ones."""


def faults_of(cluster: Cluster) -> tuple[Fault, ...] | None:
    """Of the job's servers; None if the trace is not there (RESIHP_DATA_DIR names its folder)."""
    path = Path(os.environ.get("RESIHP_DATA_DIR", "../shared/data")) / "infinitehbd_node_faults.csv"
    if not path.exists():
        return None
    nodes = list(dict.fromkeys(d.node for d in cluster.devices))
    ranks: dict[str, list[int]] = {n: [] for n in nodes}
    for d in cluster.devices:
        ranks[d.node].append(d.rank)
    with path.open(encoding="utf-8", newline="") as lines:
        found = read_node_faults(lines, nodes, lambda n: ranks[n], start_h=START_DAY * 24)
    return tuple(f for f in found if f.start_s < DAYS * 24 * HOUR)


def _run(cells: Cells, setting: Setting, servers: int, policy: Policy, faults: tuple[Fault, ...]) -> dict[str, Any]:
    arena = replace(setting.arena, schedules=(SCHEDULE,))

    def answer(policy: Policy, arena: Arena, health: Mapping[int, float]) -> Outcome:
        if policy not in (Policy.RECYCLE, Policy.RESIHP_PAPER):
            return evaluate(policy, arena, health)
        key = f"{_key(servers, policy)}/{'-'.join(map(str, sorted(health)))}"
        return Outcome(cells.get(key, lambda: evaluate(policy, arena, health).step_s))

    run = live(policy, arena, setting.healthy[1], faults, DAYS * 24 * HOUR, answer=answer)
    return {
        "goodput": run.goodput,
        "changes": run.changes,
        "paused_s": run.paused_s,
        "stopped_s": run.stopped_s,
        "segments": [[s.start_s, s.stop_s, s.throughput] for s in run.segments],
    }


def _key(servers: int, policy: Policy) -> str:
    return f"trace {TP}x{PP}/{servers}/{policy}"


def lives(known: Mapping[str, Any], servers: int) -> Mapping[Policy, Mapping[str, Any]]:
    """Of the policies that are complete, relative to the best-known healthy plan: the tuned one, or a faster one that
    was found for faults."""
    found = {p: life for p in JOBS[servers] if (life := known.get(_key(servers, p))) is not None}
    best = max([1.0, *(rate for life in found.values() for _, _, rate in life["segments"])])
    return {
        p: {**life, "goodput": life["goodput"] / best, "segments": [[a, b, r / best] for a, b, r in life["segments"]]}
        for p, life in found.items()
    }


def _up(setting: Setting, faults: tuple[Fault, ...]) -> float:
    """Mean part of the devices that are not lost."""
    end = DAYS * 24 * HOUR
    lost: dict[int, list[tuple[float, float]]] = {}
    for f in sorted(faults):
        spans = lost.setdefault(f.rank, [])
        start, stop = max(f.start_s, spans[-1][1] if spans else 0.0), min(f.stop_s, end)
        if stop > start:
            spans.append((start, stop))
    return 1 - sum(b - a for spans in lost.values() for a, b in spans) / end / len(setting.cluster.ranks)


def trace(cells: Cells) -> str:
    """A table; an explanation if there is no trace."""
    rows = []
    for servers, policies in JOBS.items():
        setting = Setting("70B", TP, servers // 8, PP, 64, "4pp", schedules=(SCHEDULE,))
        faults = faults_of(Cluster(tuple(Device(d.rank, d.node) for d in setting.cluster.devices)))
        if faults is None:
            return "The trace is not here: name its folder by RESIHP_DATA_DIR."
        lost = {(f.start_s, setting.cluster.node_of[f.rank]) for f in faults}
        for policy in policies:
            cells.get(_key(servers, policy), partial(_run, cells, setting, servers, policy, faults))
        rows.append([servers, len(lost), "bound: devices that are up", f"{_up(setting, faults):.3f}", "", "", ""])
        for policy, found in lives(cells.known, servers).items():
            hours = (f"{found['paused_s'] / HOUR:.1f}", f"{found['stopped_s'] / HOUR:.1f}")
            rows.append([servers, len(lost), policy, f"{found['goodput']:.3f}", found["changes"], *hours])
    head = ["servers", "faults", "policy", "goodput / healthy", "changes", "hours of pauses", "hours stopped"]
    return report.table(head, rows)
