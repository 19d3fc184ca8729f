"""The picture of `resihp top`: cluster map, throughput, incidents, changes. Pure: facts in, renderables out."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from resihp_cli.view.tables import cause, clock
from resihp_gateway.models import IncidentView, ReconfigurationView
from resihp_gateway.wording import milliseconds, signed

BANDS = (
    ("healthy", "blue", "■"),
    ("drifting", "yellow", "■"),
    ("slow", "dark_orange3", "▼"),
    ("very slow", "magenta", "▼"),
    ("stopped", "bold red", "✕"),
    ("standby", "dim", "□"),
    ("returning", "green", "◇"),
    ("no data", "dim", "?"),
)
_STYLE = {name: (style, sign) for name, style, sign in BANDS}
ATTENTION = frozenset({"drifting", "slow", "very slow", "stopped", "no data"})
MAX_ROWS = 6
SPARKS = "▁▂▃▄▅▆▇█"


class Picture:
    """The newest value of every fact."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.facts: dict[str, Any] = {}
        self.points: list[list[Any]] = []
        self.stale = ""

    def note(self, name: str, value: Any) -> None:
        if name == "points":
            self.points = value["points"] if value["whole"] else (self.points + value["points"])[-1000:]
        else:
            self.facts[name] = value

    @property
    def codes(self) -> bytes:
        """One byte per rank."""
        return base64.b64decode(self.facts.get("health", ""))


def band(code: int) -> str:
    """The word for a byte of the `health` fact; edges as on the page."""
    special = {255: "stopped", 254: "standby", 253: "no data", 252: "returning", 251: "healthy"}
    if code in special:
        return special[code]
    return "healthy" if code >= 90 else "drifting" if code >= 80 else "slow" if code >= 50 else "very slow"


def render(picture: Picture, width: int) -> RenderableType:
    """Everything, for a terminal of this width."""
    parts: list[RenderableType] = [_headline(picture)]
    stale = picture.stale or (picture.facts.get("stale") or {}).get("reason")
    if stale:
        parts.append(Text(f"picture may be old, training may go on: {stale}", style="black on yellow"))
    if picture.facts.get("map"):
        parts.append(_panel("cluster", _map(picture, width - 6), _legend(picture)))
    parts += [_panel("throughput", _rates(picture, width - 6)), _panel("incidents", _incidents(picture))]
    parts.append(_panel("changes of plan", _changes(picture)))
    return Group(*parts)


def _panel(title: str, *body: RenderableType) -> Panel:
    return Panel(Group(*body), title=title, title_align="left", border_style="dim")


def _headline(picture: Picture) -> Text:
    job, codes = picture.facts.get("job"), picture.codes
    if job is None:
        return Text(f"{picture.job}: connecting", style="bold")
    count = sum(band(c) in ATTENTION for c in codes)
    verdict = f"{count} of {len(codes)} devices need attention" if count else f"All {len(codes)} devices healthy"
    text = Text(f"{picture.job}  ", style="bold")
    text.append(verdict, style="bold yellow" if count else "bold green")
    clock = ", virtual clock" if job.get("virtual_clock") else ""
    of = "" if job.get("endless") else f"/{job['iterations']}"
    text.append(f"   {job['state']}{clock}, iteration {job['committed']}{of}, epoch {job['epoch']}")
    return text


def _map(picture: Picture, width: int) -> Text:
    plan, codes = picture.facts["map"], picture.codes
    members: dict[tuple[int, int], list[int]] = {}
    for r, replica in enumerate(plan["replicas"]):
        for s, stage in enumerate(replica["stages"]):
            members[r, s] = list(stage["ranks"])
    for rank, (r, s, _) in plan["ghosts"].items():
        members[r, s].append(int(rank))
    text = Text(overflow="fold")
    per_row = max((sum(len(m) + 1 for (r, _), m in members.items() if r == row) for row, _ in members), default=1)
    gap = " " if per_row + 5 <= width else ""
    for r, replica in enumerate(plan["replicas"]):
        text.append(f"R{r:<3} ", style="dim")
        for s in range(len(replica["stages"])):
            for rank in sorted(members[r, s]):
                style, sign = _STYLE[band(codes[rank] if rank < len(codes) else 253)]
                text.append(sign, style=style)
            text.append(gap)
        text.append("\n")
    if plan["pool"]:
        text.append(f"without a place: {len(plan['pool'])}\n", style="dim")
    text.rstrip()
    return text


def _legend(picture: Picture) -> Text:
    counts = Counter(band(c) for c in picture.codes)
    text = Text()
    for name, style, sign in BANDS:
        if counts[name]:
            text.append(sign, style=style)
            text.append(f" {name} {counts[name]}   ", style="dim")
    return text


def _rates(picture: Picture, width: int) -> Text:
    rates: Mapping[str, Any] = picture.facts.get("rates") or {}

    def of(key: str) -> str:
        base, now = rates.get(key), rates.get("now")
        return f"{now / base:.0%}" if base and now else "-"

    now = rates.get("now")
    text = Text(f"{now:,.0f} tokens/s" if now else "- tokens/s", style="bold")
    text.append(f"   {of('healthy')} of healthy, {of('bound')} of bound\n", style="dim")
    shown = [p[2] or 0.0 for p in picture.points[-max(10, width) :]]
    top = max([*shown, rates.get("healthy") or 0.0, 1e-9])
    text.append("".join(SPARKS[min(7, int(8 * value / top))] for value in shown), style="blue")
    return text


def _incidents(picture: Picture) -> RenderableType:
    rows = [IncidentView.model_validate(i) for i in picture.facts.get("incidents", ())[:MAX_ROWS]]
    if not rows:
        return Text("nothing happened so far", style="dim")
    table = Table.grid(padding=(0, 2))
    for incident in rows:
        state = Text("closed", style="dim") if incident.closed_at else Text("open", style="yellow")
        table.add_row(_clock(incident.opened_at), cause(incident), state, incident.advice)
    return table


def _changes(picture: Picture) -> RenderableType:
    changes = [ReconfigurationView.model_validate(c) for c in picture.facts.get("reconfigurations", ())[:MAX_ROWS]]
    if not changes:
        return Text("no plan yet", style="dim")
    table = Table.grid(padding=(0, 2))
    for c in changes:
        error = signed(c.prediction_error) if c.prediction_error is not None else "-"
        change = c.difference or ("first plan" if c.mode == "initial" else "same layout")
        table.add_row(_clock(c.created_at), c.id[:8], c.status, change, milliseconds(c.pause_s), error)
    return table


def _clock(at: datetime) -> Text:
    return Text(clock(at), style="dim")
