"""Resident memory of this process, from the kernel's tables (Linux)."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENOUGH = 128
"""Bytes; statm is seven numbers."""


class ResidentMemory:
    """Of the process that makes it. It is asked in every iteration, so the file stays open."""

    def __init__(self) -> None:
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def bytes(self) -> int:
        """Resident set now."""
        return int(os.pread(self._file, _ENOUGH, 0).split()[1]) * _PAGE_BYTES


def peak_rss_bytes() -> int:
    """Largest resident set so far (`VmHWM`): unlike `getrusage`, that of this process only, not of its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return ResidentMemory().bytes()
