"""One change of plan as a page: the same sections in HTML and in Markdown. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from resihp_cli.view.report import PHASE_MEANING
from resihp_cli.view.tables import cause
from resihp_gateway.models import JobView, ReconfigurationDetail
from resihp_gateway.wording import milliseconds, predicted_rate, signed, size, went_back

Row = tuple[str, ...]
_STYLE = """
body{font:15px/1.5 system-ui,"DejaVu Sans",sans-serif;color:#171b23;max-width:960px;margin:32px auto;padding:0 20px}
h1{font-size:24px;margin-bottom:0}h2{font-size:17px;margin:28px 0 8px}p.lead{color:#5b6474;margin-top:4px}
table{border-collapse:collapse;width:100%;font-size:14px}th{text-align:left;color:#5b6474;font-weight:500}
td,th{border-top:1px solid #e3e7ee;padding:6px 10px 6px 0;vertical-align:top}
svg{width:100%}footer{color:#5b6474;font-size:13px}
"""


@dataclass(frozen=True)
class Page:
    """What the page tells."""

    change: ReconfigurationDetail
    job: JobView
    first_iteration: int | None
    """Of the new plan."""

    @property
    def title(self) -> str:
        incident = self.change.incident
        return cause(incident) if incident else self.change.reason or f"plan of epoch {self.change.new_epoch}"

    @property
    def lead(self) -> str:
        c = self.change
        clock = " (virtual clock)" if (self.job.spec.get("clock") or {}).get("virtual") else ""
        return (
            f"Job {c.job}{clock}, {c.created_at:%Y-%m-%d %H:%M:%S} UTC. {c.mode}, {c.status}: epoch {c.old_epoch} -> "
            f"{c.new_epoch}. {c.difference or 'First plan.'}"
        )


def sections(page: Page) -> Iterator[tuple[str, Row, list[Row]]]:
    """(title, column names, rows)."""
    c = page.change
    yield "Cost", ("what", "value"), list(_cost(page))
    phases = [
        (p, milliseconds(c.phases_s[p]), meaning) for p, meaning in PHASE_MEANING if c.phases_s.get(p) is not None
    ]
    yield "Phases", ("phase", "time", "what"), [(str(a), str(b), str(m)) for a, b, m in phases]
    yield (
        "Proof",
        ("check", "result"),
        [(k.replace("_", " "), "holds" if ok else "FAILED") for k, ok in c.proof.items()],
    )
    if c.incident is not None:
        rows = [(key, _text(value)) for key, value in c.incident.evidence.items()]
        rows += [(f"verdict: {key}", _text(value)) for key, value in c.incident.verdict.items()]
        yield "Trigger", ("evidence", "value"), [*rows, ("advice", c.incident.advice or "-"), ("decision", c.reason)]
    yield "Alternatives", ("plan", "predicted", "why it lost"), list(_alternatives(c.alternatives))


def _cost(page: Page) -> Iterator[Row]:
    c = page.change
    yield "time without training", milliseconds(c.pause_s)
    yield "lost device-seconds in the pause", "-" if c.lost_device_s is None else f"{c.lost_device_s:.1f}"
    yield "moved between devices", size(c.bytes_moved)
    if c.state_source != "live":
        yield "went back", went_back(c.lost_iterations, c.state_source)
    yield "predicted throughput", predicted_rate(c)
    error = f" ({signed(c.prediction_error)} against predicted)" if c.prediction_error is not None else ""
    yield "achieved throughput", _rate(c.achieved_tokens_per_s) + error
    yield "bound (healthy throughput x device speed left, predicted)", _rate(c.bound_tokens_per_s)
    if page.first_iteration is not None:
        yield "first iteration of the new plan", str(page.first_iteration)


def _alternatives(found: Any) -> Iterator[Row]:
    for a in found if isinstance(found, list) else ():
        if isinstance(a, dict):
            name = f"{a.get('name', '')}: {a.get('difference', '')}".rstrip(": ")
            yield name, _rate(a.get("predicted_tokens_per_s")), str(a.get("reason") or a.get("why_lost") or "")


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} tokens/s"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def html_page(page: Page, plans: str, phases: str) -> str:
    """One file with everything in it."""
    parts = [f"<h1>{escape(page.title)}</h1><p class=lead>{escape(page.lead)}</p>"]
    if plans:
        parts.append(f"<h2>Old plan, new plan</h2>{plans}")
    for title, columns, rows in sections(page):
        picture = phases if title == "Phases" else ""
        parts.append(f"<h2>{title}</h2>{picture}{_html_table(columns, rows)}")
    title = escape(f"ResiHP: {page.title}")
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
    return f"{head}{''.join(parts)}<footer><p>Change {page.change.id}, written by resihp report.</p></footer></html>\n"


def _html_table(columns: Row, rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def markdown_page(page: Page, pictures: Sequence[tuple[str, str]]) -> str:
    """`pictures`: (name, file beside the page)."""
    lines = [f"# {page.title}", "", page.lead, ""]
    shown = dict(pictures)
    if "plans" in shown:
        lines += [f"![Old plan above new plan]({shown['plans']})", ""]
    for title, columns, rows in sections(page):
        lines += [f"## {title}", ""]
        if title == "Phases" and "phases" in shown:
            lines += [f"![Phases]({shown['phases']})", ""]
        if not rows:
            lines += ["None.", ""]
            continue
        lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        lines.append("")
    return "\n".join([*lines, f"Change `{page.change.id}`, written by `resihp report`.", ""])
