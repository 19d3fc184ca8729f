"""The C allocator's part in a worker's memory: where freed memory stays, and when it goes back to the system.

A change of plan frees as much as a rank holds and allocates it anew in other sizes. glibc keeps freed blocks in as many
arenas as there are threads, so the resident size would drift upwards over many changes without a leak. On other C
libraries both functions do nothing.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h
_ARENAS = 2
"""The training thread's and one for gloo's threads, which allocate little."""


def limit_arenas() -> None:
    """Call once at the start of the process, before it has threads."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Return freed memory to the system; a few milliseconds. For after a layout was dropped."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
