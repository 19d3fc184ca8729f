"""How long this thread waited for a processor that others were using."""

from __future__ import annotations


def delay_s() -> float:
    """Seconds that the calling thread was ready to run and did not, since it began; 0 where the system does not say.

    On a crowded host that is no slowness of the device (docs/architecture.md, "What counts as a failure").
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0
