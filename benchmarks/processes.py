"""What a worker process holds: threads, descriptors, memory. Read from outside, as an operator would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

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


def typical(looks: Sequence[Mapping[int, Holdings]]) -> dict[int, Holdings]:
    """Of several looks at the same processes, each rank's last one with its median memory: within an iteration, the
    activations and the copies under way make it go up and down by a tenth."""
    return {
        rank: replace(last, rss_bytes=median_low(seen[rank].rss_bytes for seen in looks))
        for rank, last in looks[-1].items()
    }
