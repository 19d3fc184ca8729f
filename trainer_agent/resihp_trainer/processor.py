"""How long a thread waited for a processor that others were using."""

from __future__ import annotations

import os
import weakref

_ENOUGH = 128
"""Bytes; schedstat is three numbers."""


class ProcessorDelay:
    """Of the thread that makes it, and for that thread only.

    On a crowded host this is no slowness of the device (docs/architecture.md, "What counts as a failure"). It is read
    around every operation, so the file stays open: 2 us a look instead of 12.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        weakref.finalize(self, os.close, self._file)

    def __call__(self) -> float:
        """Seconds that the thread was ready to run and did not, since it began; 0 where the system does not say."""
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, _ENOUGH, 0).split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return 0.0
