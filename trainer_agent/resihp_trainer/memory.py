"""Resident memory of this process, from the kernel's tables (Linux)."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from math import inf
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
AGE_S = 0.5
_ENOUGH = 128
"""Bytes; statm is seven numbers."""


class ResidentMemory:
    """Of the process that makes it. It is asked in every iteration, so the file stays open."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._clock, self._seen, self._until = clock, 0, -inf

    def recent_bytes(self, *, now: bool = False) -> int:
        """Resident set at most `AGE_S` ago, or now: a look at it costs as much as a report."""
        if (at := self._clock()) >= self._until or now:
            self._seen, self._until = self.bytes(), at + AGE_S
        return self._seen

    def bytes(self) -> int:
        """Resident set now."""
        return int(os.pread(self._file, _ENOUGH, 0).split()[1]) * _PAGE_BYTES


def peak_rss_bytes() -> int:
    """Largest resident set so far (`VmHWM`): unlike `getrusage`, that of this process only, not of its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return ResidentMemory().bytes()
