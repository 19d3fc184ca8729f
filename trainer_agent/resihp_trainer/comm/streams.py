"""Device events: when a stream came to a point, without the host waiting for it.

**Never run on a GPU so far**: checked against a fake in tests/unit/trainer_comm/test_nccl.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether the stream has come there."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds on the device from this event to `end_event`; both have been reached."""
        ...


Mark = Callable[[], Event]
"""Record an event at the end of what the current stream has been given so far."""


def cuda_mark() -> Event:
    """On the current CUDA stream, with timing."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


class StreamWaits:
    """How long a compute stream stood still for communication, by kind of group.

    A wait puts one event in front of the stream's wait for the collective and one behind it. They are read only after
    the second one has been reached, so nobody waits for them; what is still under way is reported with a later call.
    """

    def __init__(self, mark: Mark, add: Callable[[str, float], None]) -> None:
        """`add(kind, seconds)` gets every finished wait."""
        self._mark, self._add = mark, add
        self._open: deque[tuple[str, Event, Event]] = deque()
        self._inside: list[tuple[Event, Event]] = []
        """Waits since the last `begin`."""

    def around(self, kind: str, order: Callable[[], None]) -> None:
        """Run `order`, which makes the current stream wait."""
        before = self._mark()
        order()
        after = self._mark()
        self._open.append((kind, before, after))
        self._inside.append((before, after))

    def begin(self) -> Callable[[], Callable[[], float]]:
        """A compute segment begins on the stream. Call the result where it ends, and what that returns once the device
        has come there: seconds of the segment without the waits inside it."""
        self._inside = []
        before, waits = self._mark(), self._inside

        def end() -> Callable[[], float]:
            after = self._mark()
            return lambda: (before.elapsed_time(after) - sum(b.elapsed_time(a) for b, a in waits)) / 1000.0

        return end

    def harvest(self) -> None:
        """Hand on the waits that are over, in their order."""
        while self._open and self._open[0][2].query():
            kind, before, after = self._open.popleft()
            self._add(kind, before.elapsed_time(after) / 1000.0)
