"""Looks at worker processes of this machine from outside: are they still the same processes, how much memory?

A process id alone proves little (the kernel reuses them); id and start time together name one process for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

Identity = tuple[int, float]
"""(process id, start time): one process, never another."""


@dataclass
class WorkerHistory:
    """What was seen of one rank."""

    identities: list[Identity] = field(default_factory=list)
    """Distinct processes, in the order in which they were first seen."""
    last_seen_iteration: int = -1
    peak_rss_bytes: int = 0


class ProcessTable(Protocol):
    """Port to the machine's process table."""

    def identity(self, pid: int) -> Identity | None:
        """None if there is no such live process."""

    def peak_rss_bytes(self, pid: int) -> int:
        """Largest resident set so far; 0 if it cannot be read."""


class LocalProcessTable:
    """This machine, by psutil and /proc."""

    def identity(self, pid: int) -> Identity | None:
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return pid, process.create_time()
        except psutil.Error:
            return None

    def peak_rss_bytes(self, pid: int) -> int:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return 0
        for line in lines:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


class WorkerProbe:
    """Collects what is seen of each rank's worker while the job runs."""

    def __init__(self, table: ProcessTable | None = None) -> None:
        self._table = table or LocalProcessTable()
        self.history: dict[int, WorkerHistory] = {}

    def observe(self, pids: Mapping[int, int | None], *, iteration: int) -> None:
        """Look at each rank's process now; `iteration` is how far the job is known to be."""
        for rank, pid in pids.items():
            identity = self._table.identity(pid) if pid else None
            if identity is None or pid is None:
                continue
            seen = self.history.setdefault(rank, WorkerHistory())
            if identity not in seen.identities:
                seen.identities.append(identity)
            seen.last_seen_iteration = max(seen.last_seen_iteration, iteration)
            seen.peak_rss_bytes = max(seen.peak_rss_bytes, self._table.peak_rss_bytes(pid))

    def unchanged(self, ranks: Iterable[int], *, since_iteration: int) -> bool:
        """Whether each of `ranks` was seen as exactly one process, also at or after `since_iteration`."""
        return all(
            (seen := self.history.get(rank)) is not None
            and len(seen.identities) == 1
            and seen.last_seen_iteration >= since_iteration
            for rank in ranks
        )
