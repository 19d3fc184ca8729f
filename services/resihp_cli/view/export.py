"""History as CSV and Markdown: one row per change of plan."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from resihp_cli.view.tables import PHASES, cause
from resihp_gateway.models import IncidentView, ReconfigurationView
from resihp_gateway.wording import milliseconds, predicted_rate, size

COLUMNS = (
    *("id", "job", "created_at", "mode", "status", "cause", "ranks", "old_epoch", "new_epoch", "difference"),
    *(f"{phase}_s" for phase in PHASES),
    *("pause_s", "bytes_moved", "predicted_tokens_per_s", "achieved_tokens_per_s", "bound_tokens_per_s", "proof_holds"),
    "predicted_by",
)


def as_csv(changes: Sequence[ReconfigurationView], incidents: Sequence[IncidentView]) -> str:
    """RFC 4180; empty where nothing was measured."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    writer.writerows(_rows(changes, incidents))
    return out.getvalue()


def _rows(changes: Sequence[ReconfigurationView], incidents: Sequence[IncidentView]) -> Iterator[list[object]]:
    by_id = {i.id: i for i in incidents}
    for c in changes:
        incident = by_id.get(c.incident_id or "")
        why = cause(incident) if incident else c.reason
        ranks = " ".join(map(str, incident.ranks)) if incident else ""
        yield [
            *(c.id, c.job, c.created_at.isoformat(), c.mode, c.status, why, ranks, c.old_epoch, c.new_epoch),
            c.difference,
            *(c.phases_s.get(phase) for phase in PHASES),
            *(c.pause_s, c.bytes_moved, c.predicted_tokens_per_s, c.achieved_tokens_per_s, c.bound_tokens_per_s),
            all(c.proof.values()) if c.proof else None,
            c.predicted_by,
        ]


def as_markdown(changes: Sequence[ReconfigurationView], incidents: Sequence[IncidentView]) -> str:
    """A table for issues and post-mortems."""
    by_id = {i.id: i for i in incidents}
    lines = [
        "| id | time (UTC) | cause | change | status | pause | moved | predicted | achieved |",
        "|---|---|---|---|---|---:|---:|---:|---:|",
    ]
    for c in changes:
        incident = by_id.get(c.incident_id or "")
        cells = (
            f"`{c.id[:8]}`",
            f"{c.created_at:%Y-%m-%d %H:%M:%S}",
            cause(incident) if incident else c.reason,
            c.difference or "-",
            c.status,
            milliseconds(c.pause_s),
            size(c.bytes_moved),
            predicted_rate(c, " tok/s"),
            _rate(c.achieved_tokens_per_s),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} tok/s"
