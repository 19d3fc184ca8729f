"""Resident memory of this process: what the kernel's tables say (Linux), and giving freed memory back."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MALLOC_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)


def rss_bytes() -> int:
    """Resident set now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def peak_rss_bytes() -> int:
    """Largest resident set so far (`VmHWM`): unlike `getrusage`, that of this process only, not of its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return rss_bytes()


def return_freed_memory() -> None:
    """Give what was freed back to the kernel (glibc; elsewhere nothing happens). A few milliseconds.

    A state move frees shards, moments and packets of many sizes. glibc keeps them as holes in its heap, which no later
    layout fits exactly: over many changes of plan the resident set would creep up although nothing leaks.
    """
    if _MALLOC_TRIM is not None:
        _MALLOC_TRIM(0)
