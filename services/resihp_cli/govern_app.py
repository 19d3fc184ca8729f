"""The commands that govern what the scheduler does on its own: `resihp mode`, `approve`, `pause` and so on."""

from __future__ import annotations

from typing import Annotated

import typer

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]
Url = Annotated[str | None, typer.Option("--url", help="Gateway. Default: the newest local run.", metavar="URL")]
Reason = Annotated[str, typer.Option(help="Kept in the history.")]
Decision = Annotated[
    str | None, typer.Option("--decision", metavar="ID", help="Which one. Default: the newest open one.")
]


def mode(
    job: JobName,
    mode: Annotated[str, typer.Argument(metavar="act|advise|off", help="What it may do on its own.")],
    url: Url = None,
    reason: Reason = "operator",
) -> None:
    """Let the scheduler act, only advise, or weigh nothing that can wait. Losses are acted on in every mode."""
    from resihp_cli.commands.govern import run_mode

    raise typer.Exit(run_mode(job, mode, url=url, reason=reason))


def approve(job: JobName, url: Url = None, decision: Decision = None, reason: Reason = "operator") -> None:
    """Carry out what the scheduler advised, or waits with; it is weighed once more first."""
    from resihp_cli.commands.govern import run_ruling

    raise typer.Exit(run_ruling("approve", job, decision, url=url, reason=reason))


def veto(job: JobName, url: Url = None, decision: Decision = None, reason: Reason = "operator") -> None:
    """Drop what the scheduler advised, or waits with, until speeds or devices change."""
    from resihp_cli.commands.govern import run_ruling

    raise typer.Exit(run_ruling("veto", job, decision, url=url, reason=reason))


def pause(job: JobName, url: Url = None, reason: Reason = "operator") -> None:
    """Make no change that can wait, until `resihp resume`."""
    from resihp_cli.commands.govern import run_hold

    raise typer.Exit(run_hold(job, None, url=url, reason=reason))


def protect(
    job: JobName,
    seconds: Annotated[float, typer.Argument(min=0.001, help="For how long.")],
    url: Url = None,
    reason: Reason = "operator",
) -> None:
    """Make no change that can wait for some seconds."""
    from resihp_cli.commands.govern import run_hold

    raise typer.Exit(run_hold(job, seconds, url=url, reason=reason))


def resume(job: JobName, url: Url = None, reason: Reason = "operator") -> None:
    """Lift a pause or a protection."""
    from resihp_cli.commands.govern import run_hold

    raise typer.Exit(run_hold(job, 0.0, url=url, reason=reason))


def decisions(
    job: JobName, url: Url = None, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show what the scheduler weighed: why, what it did, what it predicted."""
    from resihp_cli.commands.govern import run_decisions

    raise typer.Exit(run_decisions(job, url=url, as_json=json))


def register(app: typer.Typer) -> None:
    """Add the commands to the tree, and those of `steer_app`."""
    from resihp_cli.steer_app import COMMANDS

    for command, example in (
        (mode, "resihp mode demo advise"),
        (approve, "resihp approve demo"),
        (veto, "resihp veto demo --reason 'evaluation run'"),
        (pause, "resihp pause demo"),
        (protect, "resihp protect demo 600"),
        (resume, "resihp resume demo"),
        (decisions, "resihp decisions demo"),
        *COMMANDS,
    ):
        app.command(epilog=f"Example: {example}")(command)
