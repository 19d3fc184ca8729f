"""The agent's folder: one agent at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from resihp_agent.errors import StartFailed


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder, making it if needed. The lock goes with the process. Raises `StartFailed` if it is held."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "agent.lock").open("w")
    except OSError as error:
        raise StartFailed(f"cannot use the work folder {folder}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartFailed(f"another agent uses the work folder {folder}") from None
        yield
