"""`resihp token ...`: the file of tokens that the gateway reads."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from resihp_cli.errors import CliError
from resihp_gateway.access import Role, TokenFile


def run_create(name: str, role: str, file: Path) -> int:
    """Raises `CliError` for an unknown role or a name in use."""
    try:
        chosen = Role(role)
    except ValueError:
        raise CliError(f"--role {role!r}: expected one of {', '.join(Role)}") from None
    if not name.strip() or len(name) > 64:
        raise CliError("a token needs a name of at most 64 characters")
    try:
        print(TokenFile(file).create(name, chosen, datetime.now(UTC)))
    except (ValueError, OSError) as error:
        raise CliError(str(error)) from error
    return 0


def run_list(file: Path) -> int:
    try:
        known = list(TokenFile(file).read())
        for entry in known:
            print(f"{entry.name:<24} {entry.role:<8} {entry.created_at}")
        if not known:
            print(f"no token in {file}: create one with `resihp token create NAME`")
    except ValueError as error:
        raise CliError(str(error)) from error
    return 0


def run_revoke(name: str, file: Path) -> int:
    """Raises `CliError` if there is no such token."""
    try:
        TokenFile(file).revoke(name)
    except (ValueError, OSError) as error:
        raise CliError(str(error)) from error
    return 0
