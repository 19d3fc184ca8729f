"""The abort flag of a process: the newest aborted epoch, a number that only grows.

No abort can be lost. The flag is never cleared: an epoch that is at or below it stays aborted, and a newer epoch starts
clean because its number is above it. So a check that misses an abort by a moment is repaired by the next one, at most
one slice (50 ms) later, and an abort that arrives before its epoch is built waits for it.
"""

from __future__ import annotations

from threading import Lock

from resihp_trainer.comm.port import EpochAborted


class AbortFlag:
    """Shared by all threads of a process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._through = -1

    def raise_to(self, epoch: int) -> None:
        """Abort `epoch` and all older ones."""
        with self._lock:  # two writers must not lower it
            self._through = max(self._through, epoch)

    def covers(self, epoch: int) -> bool:
        return epoch <= self._through

    def check(self, epoch: int) -> None:
        """Raise `EpochAborted` if `epoch` is aborted."""
        if epoch <= self._through:
            raise EpochAborted(epoch)
