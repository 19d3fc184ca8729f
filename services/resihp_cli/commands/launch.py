"""`resihp launch SCRIPT`: ranks that outlive one another."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_cli.launching.job import LaunchedJob, Options
from resihp_cli.run_folder import write_json


def launch_command(command: Sequence[str], options: Options, json_file: Path | None) -> int:
    """Returns 0 if all that were not lost have finished. Raises `CliError` for what cannot be started."""
    if options.min_ranks > options.num_ranks:
        raise CliError(f"--min-ranks {options.min_ranks} exceeds --nproc-per-node {options.num_ranks}")
    job = LaunchedJob(program(command), options, lambda text: print(f"resihp: {text}", file=sys.stderr, flush=True))
    try:
        run_loop(job.run(os.environ))
    finally:
        if json_file is not None:
            write_json(json_file, outcome(job))
    return status(job)


def program(command: Sequence[str]) -> tuple[str, ...]:
    """A script runs under the Python of this command; anything else as it is. Raises `CliError` if it is not there.

    >>> program(["/bin/sh", "-c", "true"])
    ('/bin/sh', '-c', 'true')
    """
    if command[0].endswith(".py"):
        if not Path(command[0]).is_file():
            raise CliError(f"{command[0]}: no such script")
        return (sys.executable, *command)
    if shutil.which(command[0]) is None:
        raise CliError(f"{command[0]}: no such program")
    return tuple(command)


def status(job: LaunchedJob) -> int:
    """0, or the exit status of a rank that failed (128 + n for signal n): the first one, if nobody finished."""
    lost = [loss.rank for loss in job.losses]
    survivors = [code for rank, code in sorted(job.codes.items()) if rank not in lost]
    if not job.stopped and survivors:
        return next((_positive(code) for code in survivors if code), 0)
    return next((_positive(job.codes[rank]) for rank in lost if job.codes[rank]), 1 if job.stopped else 0)


def _positive(code: int) -> int:
    return code if code >= 0 else 128 - code


def outcome(job: LaunchedJob) -> dict[str, object]:
    """For `--json`."""
    return {
        "pids": job.pids,
        "exit_codes": job.codes,
        "losses": [{**asdict(loss), "resume_s": max(loss.resumed_s.values(), default=None)} for loss in job.losses],
        "stopped": job.stopped,
    }
