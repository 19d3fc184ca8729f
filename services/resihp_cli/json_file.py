"""The file of `--json FILE`; `-` is standard output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from resihp_cli.errors import CliError


def check_json_path(path: Path | None) -> None:
    """A result that cannot be written must be refused before the run, not after it."""
    if path is None:
        return
    parent = path.absolute().parent
    if not parent.is_dir():
        raise CliError(f"--json {path}: folder {parent} does not exist")


def write_document(document: dict[str, Any], path: Path) -> None:
    """Raises `CliError`."""
    text = json.dumps(document, indent=2)
    if str(path) == "-":
        print(text)
        return
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise CliError(f"--json {path}: {error.strerror or error}") from error
