"""`resihp model export`: the result of a run as a Hugging Face model folder. Needs torch, so it is another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from resihp_cli.errors import CliError
from resihp_cli.run_folder import find, read_json


def run_export(target: Path, *, run: str | None, dtype: str | None) -> int:
    """Raises `CliError` if there is no finished run, or it cannot be exported."""
    folder = find(run)
    found = sorted((folder.path / "jobs").glob("*/spec.json"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise CliError(f"run {folder.id} has no finished job to export")
    result = found[-1].parent
    final = result / "final" / f"e{read_json(result / 'plan.json')['epoch']}"
    command = [
        *(sys.executable, "-m", "resihp_trainer.export"),
        *("--spec", str(found[-1]), "--final", str(final), "--to", str(target)),
        *(("--dtype", dtype) if dtype is not None else ()),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise CliError(lines[-1].removeprefix("python -m resihp_trainer.export: ") if lines else "export failed")
    print(done.stdout.strip())
    return 0
