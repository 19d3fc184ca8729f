"""What the agent asks the kernel about its workers, and how it fences them. Linux.

A worker is the leader of its own process group (the zygote calls `setpgid` after the fork), so that one signal also
reaches its helpers, e.g. data loaders: survivors of a dead worker would keep devices and sockets busy.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if it is gone already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def state_letter(pid: int) -> str:
    """State of the process table: `R` running, `S` sleeping, `T` stopped, `Z` zombie, ...; empty if it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def is_stopped(letter: str) -> bool:
    """Stopped by a signal or a tracer: such a process cannot be merely slow."""
    return letter in {"T", "t"}


def kill_group(pgid: int) -> bool:
    """SIGKILL to every member of the group. False if there was none."""
    if pgid <= 1:  # 0 would be our own group, 1 and -1 everybody: never
        raise ValueError(f"not a worker's process group: {pgid}")
    try:
        os.killpg(pgid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:  # the number was taken over by somebody else's process: ours are gone
        return False
    return True


def send_signal(pid: int, number: signal.Signals) -> bool:
    """False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def group_members(pgid: int) -> tuple[int, ...]:
    """Live members of a process group. Zombies do not count: they hold nothing and cannot act."""
    return tuple(pid for pid, letter, group in _processes() if group == pgid and letter not in {"Z", "X"})


def _processes() -> Iterator[tuple[int, str, int]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                yield int(entry.name), fields[0], int(fields[2])


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command name, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
