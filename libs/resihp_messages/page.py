"""The progress page: 64 bytes of shared memory per worker, written by the worker, read by its agent.

It separates three signals that a heartbeat thread would mix: the process exists (its agent asks the kernel), it is
alive (`tick` moves even while it waits for peers), and it makes progress (`ops` moves). A single writer and aligned
8-byte stores make it safe without a lock; a torn read of neighbouring fields only shows a mixture of two states.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from mmap import mmap

PAGE_BYTES = 64
_LAYOUT = struct.Struct("<QQQQQdd")  # tick, ops, epoch, iteration, state, alive_at_s, fault_at_s


class PageState(IntEnum):
    """Worker states, in the order of `report.WorkerState`."""

    STARTING = 0
    WAITING = 1
    REBUILDING = 2
    MOVING = 3
    TRAINING = 4
    FINISHING = 5
    STANDBY = 6
    STOPPED = 7


@dataclass(frozen=True)
class Progress:
    """A snapshot of the page. Times are CLOCK_MONOTONIC seconds of the host; 0.0 means never."""

    tick: int
    ops: int
    epoch: int
    iteration: int
    state: PageState
    alive_at_s: float
    fault_at_s: float
    """When a scripted fault struck, written just before the signal: the exact start of detection."""


class ProgressPage:
    """View of one worker's page on a memory map (`PAGE_BYTES` long) that agent and worker share."""

    def __init__(self, memory: mmap) -> None:
        self._memory = memory

    def read(self) -> Progress:
        tick, ops, epoch, iteration, state, alive, fault = _LAYOUT.unpack_from(self._memory, 0)
        return Progress(tick, ops, epoch, iteration, PageState(state), alive, fault)

    def tick(self) -> None:
        """Sign of life: called in every slice of a wait and with every operation."""
        (tick,) = struct.unpack_from("<Q", self._memory, 0)
        struct.pack_into("<Q", self._memory, 0, tick + 1)
        struct.pack_into("<d", self._memory, 40, time.monotonic())

    def operation(self) -> None:
        """Progress: one operation of the program is done."""
        (ops,) = struct.unpack_from("<Q", self._memory, 8)
        struct.pack_into("<Q", self._memory, 8, ops + 1)
        self.tick()

    def place(self, *, epoch: int, iteration: int, state: PageState) -> None:
        """Where the worker is now."""
        struct.pack_into("<QQQ", self._memory, 16, epoch, iteration, int(state))
        self.tick()

    def mark_fault(self) -> None:
        """A scripted fault is about to strike this process."""
        struct.pack_into("<d", self._memory, 48, time.monotonic())
