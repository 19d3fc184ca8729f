"""Commands for jobs that somebody else launches. Kept apart from `app`, as a room of its own uses them."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `resihp run`."""
    app.command(
        "run",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
        epilog="Example: resihp run -- torchrun --nproc-per-node 4 train.py",
    )(run)


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The launcher and its arguments.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Of the job. Default: the script's, with the time of day.")
    ] = None,
    axes: Annotated[
        str, typer.Option("--axes", metavar="pp=P,dp=D,tp=T", help="Parallel axes, slowest first. Default: dp only.")
    ] = "",
    hang_s: Annotated[
        float, typer.Option("--hang", min=1.0, metavar="S", help="No progress on any rank for this long is a hang.")
    ] = 120.0,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Gateway port of an own system.")] = 0,
) -> None:
    """Run a training job of any launcher, unchanged, and watch it: slow, frozen, dead ranks and hangs are named.

    Uses the system of `resihp up` if one runs here, else starts one for the length of the command. The exit status is
    the command's own. If nothing can be watched, the command runs all the same.
    """
    from resihp_cli.commands.run import run_command

    raise typer.Exit(run_command(command, name=name, axes=axes, hang_s=hang_s, port=port))
