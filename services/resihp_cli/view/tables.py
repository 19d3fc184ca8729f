"""Tables for people, as rich renderables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from resihp_gateway.models import DeviceView, IncidentView, JobView, ReconfigurationView
from resihp_gateway.wording import milliseconds, position_name, size

STATE_STYLE = {
    "healthy": "green",
    "finished": "green",
    "lost": "bold white on red",
    "standby": "cyan",
    "returning": "yellow",
}
WIDE = 140
"""Columns from which on a line of the history holds all phases of its change."""
PHASES = ("detect", "plan", "abort", "rebuild", "move", "redo", "total")


def state_word(device: DeviceView) -> str:
    """`healthy`, `stopped`, `standby`: the words of every view."""
    return "stopped" if device.state == "lost" else device.state


def device_table(devices: Sequence[DeviceView]) -> Table:
    """Rank, node, place in the plan, state, p, process."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column, justify in (("rank", "right"), ("node", "left"), ("place", "left"), ("state", "left"), ("p", "right")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    table.add_column("doing")
    table.add_column("iteration", justify="right")
    table.add_column("pid", justify="right")
    for d in sorted(devices, key=lambda d: d.rank):
        lost = d.state == "lost"
        table.add_row(
            str(d.rank),
            d.node,
            position_name(d.position),
            Text(state_word(d), style=STATE_STYLE.get(d.state, "yellow")),
            f"{d.p:.2f}",
            "-" if lost else (d.worker_state or "-"),
            "-" if lost or d.iteration is None else str(d.iteration),
            str(d.live_pid or d.pid or "-"),
            style="dim" if lost else "",
        )
    return table


def job_table(jobs: Sequence[JobView]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("job", "state", "iteration", "epoch", "loss", "held-out", "reason"):
        table.add_column(column, justify="left" if column in ("job", "state", "reason") else "right")
    for j in jobs:
        loss = "-" if j.final_loss is None else f"{j.final_loss:.4f}"
        table.add_row(j.job, j.state, _progress(j), str(j.epoch), loss, _held_out(j), j.reason)
    return table


def _held_out(job: JobView) -> str:
    """`3.2500 @20`: the newest loss on held-out text, and after which iteration."""
    newest = job.held_out
    return f"{newest.loss:.4f} @{newest.iteration}" if newest is not None and newest.loss is not None else "-"


def _progress(job: JobView) -> str:
    """How far; of how many iterations, if anybody has said."""
    return f"{job.committed}/{job.iterations}" if not job.endless else str(job.committed)


def history_table(
    reconfigurations: Sequence[ReconfigurationView], incidents: Sequence[IncidentView], width: int = WIDE
) -> Table:
    """`id · time · cause · old -> new · status · pause · moved`, oldest first; where there is room also the phases."""
    by_id = {i.id: i for i in incidents}
    days = {r.created_at.astimezone().date() for r in reconfigurations}
    phases = tuple(p for p in PHASES if p != "total") if width >= WIDE else ()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("id", "time", "cause", "change", "status"):
        table.add_column(column, no_wrap=column not in ("cause", "change"))
    for number in (*phases, "pause", "moved"):
        table.add_column(number, justify="right", no_wrap=True)
    for r in reconfigurations:
        incident = by_id.get(r.incident_id or "")
        table.add_row(
            r.id[:8],
            clock(r.created_at, dated=len(days) > 1),
            cause(incident) if incident else r.reason,
            r.difference or "-",
            r.status,
            *(milliseconds(r.phases_s.get(p)) for p in phases),
            milliseconds(r.pause_s),
            size(r.bytes_moved),
        )
    return table


def clock(at: datetime, *, dated: bool = False) -> str:
    """Time of day as on the wall of whoever reads it, in every view of the terminal; files and messages have UTC."""
    return f"{at.astimezone():{'%m-%d ' if dated else ''}%H:%M:%S}"


WHAT = {
    "worker_lost": "stopped",
    "worker_frozen": "frozen",
    "node_lost": "stopped with its node",
    "link_broken": "lost a link",
    "device_slow": "slow",
    "device_suspected": "seems slow",
    "device_recovered": "as fast as before",
    "link_slow": "with a slow link",
    "state_diverged": "with a state that differs from its copies",
    "job_hung": "waited for, no progress",
}


def cause(incident: IncidentView) -> str:
    """`rank 3 stopped`."""
    ranks = ", ".join(f"rank {r}" for r in incident.ranks) or f"node {incident.node}"
    return f"{ranks} {WHAT.get(incident.kind, incident.kind.replace('_', ' '))}"
