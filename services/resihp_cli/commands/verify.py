"""`resihp verify`: parity with an undisturbed run. The comparison itself needs torch, so it is another process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_cli.job_file import build
from resihp_cli.json_file import check_json_path, write_document
from resihp_cli.outcome import PARITY_LIMIT
from resihp_cli.run_folder import find, read_json


def run_verify(*, run: str | None, json_path: Path | None) -> int:
    """0 if the run holds. Raises `CliError`."""
    check_json_path(json_path)
    folder = find(run)
    found = sorted((folder.path / "jobs").glob("*/spec.json"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise CliError(f"run {folder.id} has no finished job to verify")
    result = found[-1].parent
    spec = build(read_json(result / "spec.json"), origin=str(result / "spec.json"))
    answer = run_loop(run_verification(result, lambda text: print(text, file=sys.stderr)))
    difference, limit = answer.get("max_abs_diff"), PARITY_LIMIT[spec.dtype]
    holds = difference is not None and difference <= limit
    if json_path is not None:
        write_document({"run": folder.id, "job": spec.name, "limit": limit, "holds": holds, **answer}, json_path)
    elif difference is None:
        print(f"{spec.name}: no answer: {answer.get('error')}")
    else:
        print(
            f"{spec.name}: largest difference from an undisturbed run {difference:.3g} (limit {limit:g}, {spec.dtype})"
        )
    return 0 if holds else 1


async def run_verification(result: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Run the comparison on a result folder (`spec.json`, `plan.json`, `final/e<epoch>/`).

    Returns the program's answer: `max_abs_diff`, `reference`, ...; with `error` and `max_abs_diff` None if it failed.
    """
    plan = read_json(result / "plan.json")
    final = result / "final" / f"e{plan['epoch']}"
    if not final.is_dir():
        return {"max_abs_diff": None, "error": f"no final shards in {final}"}
    command = [
        *(sys.executable, "-m", "resihp_trainer.verify"),
        *("--spec", str(result / "spec.json"), "--final", str(final), "--plan", str(result / "plan.json"), "--json"),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    last = (err.decode(errors="replace").strip().splitlines() or [""])[-1]
    try:
        answer = json.loads(out)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict) or "max_abs_diff" not in answer:
        return {"max_abs_diff": None, "error": f"verification ended with exit code {process.returncode}: {last}"}
    return answer
