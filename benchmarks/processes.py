"""What a worker process holds: threads, descriptors, memory. Read from outside, as an operator would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Holdings:
    """One look at one process."""

    pid: int
    created_at: float
    """Start time of the process: tells a process id that was used again."""
    num_threads: int
    num_descriptors: int
    rss_bytes: int


def look(pid: int) -> Holdings:
    """Raises `psutil.NoSuchProcess` if it is gone."""
    process = psutil.Process(pid)
    with process.oneshot():
        return Holdings(pid, process.create_time(), process.num_threads(), process.num_fds(), process.memory_info().rss)


def look_at(pids: Mapping[int, int]) -> dict[int, Holdings]:
    """rank -> pid  to  rank -> what it holds."""
    return {rank: look(pid) for rank, pid in sorted(pids.items())}
