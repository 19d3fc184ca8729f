"""`resihp doctor`: prints each check; exit code 2 if one fails."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from resihp_cli.checks import Check, run_checks
from resihp_cli.commands.running import run as run_loop


def run_doctor(
    *, job_file: Path | None, url: str | None, bus: str | None, database: str | None, port: int | None, as_json: bool
) -> int:
    checks = run_loop(run_checks(job_file=job_file, url=url, bus=bus, database=database, port=port))
    failed = [c for c in checks if not c.ok]
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(c) for c in checks]}, indent=2))
    else:
        _print(checks)
    return 2 if failed else 0


def _print(checks: list[Check]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for check in checks:
        mark = "[green]ok  [/]" if check.ok else "[bold red]FAIL[/]"
        console.print(f"{mark} {check.name:<12} {check.found}")
        if not check.ok:
            console.print(f"     mend it: {check.mend}")
