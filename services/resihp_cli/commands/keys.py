"""`resihp keys ...`: who is who on the message bus (docs/security.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from resihp_bus import KeyFolder, KeysError
from resihp_cli.errors import CliError


def run_init(
    folder: Path,
    *,
    agents: Sequence[str],
    readers: Sequence[str],
    rotate: Sequence[str],
    tls: Sequence[str],
    server_path: str | None,
    owner: int | None,
) -> int:
    """Make what is missing and say what the server must do. Raises `CliError`."""
    keys = KeyFolder(folder)
    try:
        known = keys.init(agents, readers=readers, rotate=rotate, tls_hosts=tls, server_path=server_path, owner=owner)
    except KeysError as error:
        raise CliError(str(error)) from error
    for identity in known:
        print(f"{identity.name:<24} {folder / identity.name / 'seed.nk'}")
    print(f"include {keys.config} in nats-server's configuration; a server that runs: nats-server --signal reload")
    return 0


def run_list(folder: Path) -> int:
    """Names and public keys. Raises `CliError`."""
    try:
        known = KeyFolder(folder).public_keys()
        for name, public in known.items():
            print(f"{name:<24} {public}")
        if not known:
            print(f"no key in {folder}: `resihp keys init` makes them")
    except KeysError as error:
        raise CliError(str(error)) from error
    return 0


def run_remove(folder: Path, name: str) -> int:
    """Raises `CliError` if there is no such agent or reader."""
    keys = KeyFolder(folder)
    try:
        keys.remove(name)
        keys.init([])
    except KeysError as error:
        raise CliError(str(error)) from error
    print(f"removed; now reload the server: nats-server --signal reload (it closes {name}'s connections)")
    return 0
