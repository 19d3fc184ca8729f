"""The fencing ledger: the greatest leader token seen and the newest plan epoch of every job, kept on disk.

What an agent does for a command does not outlive the agent (its workers die with it), so the ledger need not be written
before the deed, only before the command is acknowledged on the bus; reading it back at the start keeps a leader that
was deposed before a restart out afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from resihp_agent.errors import StaleCommand


class FencingLedger:
    """Admits commands by token and epoch. A broken file counts as empty: fencing then starts anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = 0
        self._epochs: dict[str, int] = {}
        self._dirty = False
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            data = json.loads(path.read_text())
            token, epochs = int(data["token"]), {str(job): int(epoch) for job, epoch in data["epochs"].items()}
            self._token, self._epochs = token, epochs

    @property
    def token(self) -> int:
        return self._token

    def epoch(self, job: str) -> int:
        """Newest admitted plan epoch of the job, 0 if none."""
        return self._epochs.get(job, 0)

    def admit_token(self, token: int) -> None:
        """Raises `StaleCommand` if a newer leader has been seen."""
        if token < self._token:
            raise StaleCommand(f"leader token {token} is older than {self._token}")
        if token > self._token:
            self._token, self._dirty = token, True

    def admit_epoch(self, job: str, epoch: int) -> None:
        """Raises `StaleCommand` unless the epoch is newer than every admitted one of the job."""
        newest = self.epoch(job)
        if epoch <= newest:
            raise StaleCommand(f"plan epoch {epoch} of job {job} is not newer than {newest}")
        self._epochs[job], self._dirty = epoch, True

    def reset_epoch(self, job: str) -> None:
        """The job starts anew: any epoch is newer."""
        if self._epochs.pop(job, None) is not None:
            self._dirty = True

    def save(self) -> None:
        """Write atomically (rename) and durably (fsync) if something changed."""
        if not self._dirty:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(".new")
        with scratch.open("w") as file:
            json.dump({"token": self._token, "epochs": self._epochs}, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._path)
        self._dirty = False
