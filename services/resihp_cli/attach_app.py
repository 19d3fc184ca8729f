"""Commands for jobs that somebody else launches. Kept apart from `app`, as a room of its own uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `resihp run` and `resihp launch`."""
    app.command(
        "run",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
        epilog="Example: resihp run -- torchrun --nproc-per-node 4 train.py",
    )(run)
    app.command(
        "launch",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
        epilog="Example: resihp launch --nproc-per-node 4 examples/attach/launch_ddp.py",
    )(launch)


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


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="SCRIPT...", help="A Python script (or a program) and its arguments.")
    ],
    num_ranks: Annotated[
        int, typer.Option("--nproc-per-node", "-n", min=1, max=64, help="Ranks, all on this machine.")
    ] = 1,
    min_ranks: Annotated[int, typer.Option("--min-ranks", min=1, help="With fewer than these the job ends.")] = 1,
    stall_s: Annotated[
        float, typer.Option("--stall", min=0.5, metavar="S", help="A rank that is stopped for this long is killed.")
    ] = 5.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the outcome as JSON.", dir_okay=False)] = None,
) -> None:
    """Start a data-parallel job that goes on without ranks that die, in the same processes (resihp_attach.ddp).

    Where torchrun ends all ranks when one is lost, this launcher tells the others, which repeat the interrupted step
    among themselves. The exit status is 0 if the survivors finish.
    """
    from resihp_cli.commands.launch import launch_command
    from resihp_cli.launching.job import Options

    raise typer.Exit(launch_command(command, Options(num_ranks, min_ranks, stall_s), json_file))
