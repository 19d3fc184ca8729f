"""How long a worker has really been silent: its own fault, not the fault of a crowded machine.

A worker that waits for a processor cannot tick. On a host with more runnable processes than cores, wall time alone
would fence healthy workers, so time that the kernel says the worker spent waiting to run does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

_RUNNABLE = "R"
_SPIN_SHARE = 0.5
"""A runnable worker is only called frozen after it has used the processor for this share of the stall time in vain."""
_STARVED_LIMIT = 10.0
"""After this many stall times no excuse counts."""


@dataclass(frozen=True)
class Scheduling:
    """Totals of the process's main thread since it started (first two fields of /proc/PID/schedstat)."""

    on_cpu_s: float
    waited_s: float
    """Runnable, but another process had the processor."""


def scheduling(pid: int) -> Scheduling | None:
    """None if the kernel keeps no such account, or the process is gone."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            on_cpu_ns, waited_ns = file.read().split()[:2]
    except (OSError, ValueError):
        return None
    return Scheduling(int(on_cpu_ns) / 1e9, int(waited_ns) / 1e9)


@dataclass
class Silence:
    """Of one worker. `look` at every watch; then `stalled_s` judges."""

    last_sign_s: float
    """Monotonic time of the newest sign of life."""
    at_last_sign: Scheduling | None = None
    now: Scheduling | None = None

    def look(self, last_sign_s: float, account: Scheduling | None) -> None:
        """A new sign of life starts the silence, and the account of excuses, anew."""
        if last_sign_s != self.last_sign_s or self.at_last_sign is None:
            self.last_sign_s, self.at_last_sign = last_sign_s, account
        self.now = account

    def stalled_s(self, silent_s: float, letter: str, stall_s: float) -> float | None:
        """Seconds of silence that count if they exceed `stall_s`, else None.

        `silent_s` is wall time, `letter` the state of the process table. Stopped processes have no excuse.
        """
        if silent_s <= stall_s:
            return None
        if self.at_last_sign is None or self.now is None or silent_s > _STARVED_LIMIT * stall_s or letter in {"T", "t"}:
            return silent_s
        used_s = self.now.on_cpu_s - self.at_last_sign.on_cpu_s
        if letter == _RUNNABLE and used_s < _SPIN_SHARE * stall_s:
            return None  # it wants to run and did not get to: also while the wait itself is not on the account yet
        counted_s = silent_s - (self.now.waited_s - self.at_last_sign.waited_s)
        return counted_s if counted_s > stall_s else None
