"""The report at the end of a run: what happened, phase by phase, what it cost, and the proof."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from resihp_cli.outcome import Outcome
from resihp_gateway.wording import milliseconds, size, went_back

PHASE_MEANING = (
    ("detect", "last sign of life to the agent's notice"),
    ("plan", "notice to the command with the new plan"),
    ("abort", "slowest survivor out of its operation (beside planning)"),
    ("rebuild", "process groups of the new plan"),
    ("move", "shards to their new holders, verified"),
    ("redo", "the interrupted iteration, again"),
)


def print_report(console: Console, outcome: Outcome) -> None:
    """Print everything that `out.json` holds, for people."""
    document = outcome.document
    for recovery in document["recoveries"]:
        ranks = ", ".join(map(str, recovery["ranks"])) or "-"
        how = {"worker_frozen": "froze", "worker_lost": "was lost"}.get(recovery["kind"], "was lost")
        _print_change(console, f"Rank {ranks} {how}", recovery)
    for change in document["planned_changes"]:
        _print_change(console, "Planned change", change)
    _print_proof(console, document)
    for failure in outcome.failures:
        console.print(f"[bold red]does not hold:[/] {failure}", highlight=False)
    if not outcome.failures:
        console.print("[bold green]Everything asked for holds.[/]", highlight=False)


def _print_change(console: Console, title: str, change: dict[str, Any]) -> None:
    console.print()
    console.print(
        f"[bold]{title}[/]: epoch {change['old_epoch']} -> {change['new_epoch']}, {change['difference']}",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for phase, meaning in PHASE_MEANING:
        table.add_row(phase, milliseconds(change[f"{phase}_s"]), meaning)
    table.add_row("total", milliseconds(change["total_s"]), f"{size(change['bytes_moved'])} moved", style="bold")
    console.print(table)
    if change["state_source"] != "live":
        lost = went_back(change["lost_iterations"], change["state_source"])
        console.print(f"all ranks went back together: {lost}", highlight=False)


def _print_proof(console: Console, document: dict[str, Any]) -> None:
    console.print()
    rate, samples = document["throughput_tokens_per_s"], document["samples"]
    after = f" -> {rate['after']:,.0f} after" if rate["after"] else ""
    clock = " (virtual clock)" if document["virtual_clock"] else ""
    if rate["before"]:
        console.print(f"throughput   {rate['before']:,.0f} tokens/s before{after}{clock}", highlight=False)
    lines = [
        ("iterations", f"{document['committed']} of {document['iterations']} committed"),
        (
            "samples",
            f"{samples['seen_once']} of {samples['expected']} used exactly once, "
            f"{samples['lost']} lost, {samples['repeated']} repeated",
        ),
        (
            "processes",
            "every surviving rank kept its process"
            if document["survivor_pids_unchanged"]
            else "NOT every surviving rank kept its process",
        ),
    ]
    if document["worker_rss_mb"]["max"] is not None:
        lines.append(("memory", f"largest worker {document['worker_rss_mb']['max']:.0f} MiB"))
    parity = document["parity"]
    if parity and parity.get("max_abs_diff") is not None:
        lines.append(
            ("parity", f"largest difference from an undisturbed run {parity['max_abs_diff']:.3g} ({document['dtype']})")
        )
    for label, text in lines:
        console.print(f"{label:<12} {text}", highlight=False)
