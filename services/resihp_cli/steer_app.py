"""Commands about a job, its devices and rules: `resihp stop`, `evict`, `readmit`, `undo`, `threshold`, `control`."""

from __future__ import annotations

from typing import Annotated

import typer

from resihp_cli.govern_app import JobName, Reason, Url

Ranks = Annotated[list[int], typer.Argument(metavar="RANK", min=0, help="Devices by their rank.")]


def evict(job: JobName, ranks: Ranks, url: Url = None, reason: Reason = "operator") -> None:
    """Take devices out of the plan, whatever the mode; they stand by until they are readmitted."""
    from resihp_cli.commands.steer import run_devices

    raise typer.Exit(run_devices("evict", job, ranks, url=url, reason=reason))


def readmit(job: JobName, ranks: Ranks, url: Url = None, reason: Reason = "operator") -> None:
    """End an eviction; a plan with the devices is weighed as the mode allows."""
    from resihp_cli.commands.steer import run_devices

    raise typer.Exit(run_devices("readmit", job, ranks, url=url, reason=reason))


def undo(job: JobName, url: Url = None, reason: Reason = "operator") -> None:
    """Go back to the layout before the last change; once more, and it is that change again."""
    from resihp_cli.commands.steer import run_undo

    raise typer.Exit(run_undo(job, url=url, reason=reason))


def stop(job: JobName, url: Url = None, reason: Reason = "operator") -> None:
    """Stop a job and its workers; the services go on."""
    from resihp_cli.commands.steer import run_stop

    raise typer.Exit(run_stop(job, url=url, reason=reason))


def threshold(
    job: JobName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as min_gain; `resihp control` lists them.")],
    value: Annotated[str, typer.Argument(metavar="VALUE|default", help="The number, or `default`.")],
    url: Url = None,
    reason: Reason = "operator",
) -> None:
    """Change a number of the rules by which this job's changes are decided."""
    from resihp_cli.commands.steer import run_threshold

    raise typer.Exit(run_threshold(job, name, value, url=url, reason=reason))


def control(
    job: JobName, url: Url = None, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show how a job is governed: mode, holds, breaker, evicted devices, thresholds, what waits for a person."""
    from resihp_cli.commands.steer import run_control

    raise typer.Exit(run_control(job, url=url, as_json=json))


COMMANDS = (
    (stop, "resihp stop demo --reason 'wrong data'"),
    (evict, "resihp evict demo 5 --reason 'bad link'"),
    (readmit, "resihp readmit demo 5"),
    (undo, "resihp undo demo --reason 'slower than before'"),
    (threshold, "resihp threshold demo min_gain 0.05"),
    (control, "resihp control demo"),
)
