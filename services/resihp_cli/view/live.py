"""The live screen: is it all right, how far, who does what, what happened."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from resihp_cli.view.tables import clock, device_table
from resihp_cli.watch import JobWatch
from resihp_gateway.models import EventView, IterationView
from resihp_gateway.wording import ALARMS, GOOD, SECONDARY, describe, names

MAX_FEED_LINES = 9
MIN_FEED_LINES = 3
FRAME_LINES = 9
"""Headline, progress, borders, table head, notes."""
RATE_WINDOW = 5


class LiveView:
    """Draws a `JobWatch` with rich while the context is open."""

    def __init__(self, watch: JobWatch, console: Console) -> None:
        self._watch = watch
        self._console = console
        self._notes: list[str] = []
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=8, transient=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.refresh()
        self._live.__exit__(None, None, None)

    def note(self, text: str) -> None:
        self._notes = [text]

    def on_event(self, event: EventView) -> None:
        """Nothing to keep: the screen is drawn from the watch."""

    def on_iterations(self, new: list[IterationView]) -> None:
        """Nothing to keep: the screen is drawn from the watch."""

    def render(self) -> Group:
        watch = self._watch
        parts: list[object] = [Text(headline(watch), style="bold"), _progress(watch)]
        if watch.devices:
            parts.append(Panel(device_table(watch.devices), title="devices", title_align="left", border_style="dim"))
        parts.append(Panel(self._feed(), title="events", title_align="left", border_style="dim"))
        if watch.stale:
            parts.append(Text(f"picture may be old, training may go on: {watch.stale}", style="black on yellow"))
        parts += [Text(note, style="dim") for note in self._notes]
        return Group(*parts)  # type: ignore[arg-type]

    def _feed(self) -> Table:
        table = Table.grid(padding=(0, 1))
        known = names(self._watch.devices)
        room = self._console.height - FRAME_LINES - len(self._watch.devices)
        lines = min(max(room, MIN_FEED_LINES), MAX_FEED_LINES)
        shown = [e for e in self._watch.events if e.name not in SECONDARY][-lines:]
        for event in shown:
            style = "red" if event.name in ALARMS else "green" if event.name in GOOD else ""
            table.add_row(
                Text(clock(event.occurred_at), style="dim"),
                Text(describe(event, known), style=style),
            )
        for _ in range(lines - len(shown)):
            table.add_row("", "")
        return table


def headline(watch: JobWatch) -> str:
    """`All 8 devices healthy`, or how many need attention."""
    devices = watch.devices
    if not devices or all(d.state == "starting" for d in devices):
        return "Starting"
    lost = sum(d.state == "lost" for d in devices)
    if not lost:
        return f"All {len(devices)} devices healthy"
    return f"{lost} of {len(devices)} devices stopped, {len(devices) - lost} in work or standing by"


def _progress(watch: JobWatch) -> Table:
    job = watch.job
    total = job.iterations if job else 1
    table = Table.grid(padding=(0, 2))
    recent = [i for i in watch.iterations[-RATE_WINDOW:] if i.step_s]
    seconds = sum(i.step_s or 0.0 for i in recent)
    rate = f"{sum(i.tokens for i in recent) / seconds:,.0f} tok/s" if seconds else "- tok/s"
    loss = watch.iterations[-1].loss if watch.iterations else None
    table.add_row(
        f"iteration {watch.committed}/{total}",
        ProgressBar(total=total, completed=watch.committed, width=30),
        f"epoch {job.epoch if job else 0}",
        f"loss {loss:.4f}" if loss is not None else "loss -",
        rate,
    )
    return table
