"""The progress page: `PAGE_BYTES` bytes of shared memory per worker, written by the worker, read by its agent.

It separates three signals that a heartbeat thread would mix: the process exists (its agent asks the kernel), it is
alive (`tick` moves even while it waits for peers), and it makes progress (`ops` moves).

There is no lock. One writer; each field is an aligned machine word that is stored and loaded whole, so that a reader
sees an old or a new value of a field, never a mixture of bytes; neighbouring fields may be of two moments. Views of
words are used because `struct` copies doubles byte by byte: measured, 9 % of reads under contention were torn, and a
torn time of the last sign of life looks like a frozen worker.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum
from mmap import mmap

PAGE_BYTES = 64
_TICK, _OPS, _EPOCH, _ITERATION, _STATE = range(5)  # 8-byte unsigned words from byte 0
_WORDS_END = 40
_ALIVE_AT, _FAULT_AT = range(2)  # doubles from byte 40
_TIMES_END = 56


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
    """View of one worker's page on a memory map that agent and worker share. Raises ValueError if that is too short."""

    def __init__(self, memory: mmap) -> None:
        if len(memory) < PAGE_BYTES:
            raise ValueError(f"a progress page has {PAGE_BYTES} bytes, not {len(memory)}")
        view = memoryview(memory)
        self._words = view[:_WORDS_END].cast("Q")
        self._times = view[_WORDS_END:_TIMES_END].cast("d")

    def read(self) -> Progress:
        """Raises ValueError if the page holds no known state: no worker of this version wrote it."""
        words, times = self._words, self._times
        return Progress(
            tick=words[_TICK],
            ops=words[_OPS],
            epoch=words[_EPOCH],
            iteration=words[_ITERATION],
            state=PageState(words[_STATE]),
            alive_at_s=times[_ALIVE_AT],
            fault_at_s=times[_FAULT_AT],
        )

    def tick(self) -> None:
        """Sign of life: called in every slice of a wait and with every operation."""
        self._words[_TICK] += 1
        self._times[_ALIVE_AT] = time.monotonic()

    def operation(self) -> None:
        """Progress: one operation of the program is done."""
        words = self._words
        words[_OPS] += 1
        words[_TICK] += 1
        self._times[_ALIVE_AT] = time.monotonic()

    def place(self, *, epoch: int, iteration: int, state: PageState) -> None:
        """Where the worker is now."""
        self._words[_EPOCH] = epoch
        self._words[_ITERATION] = iteration
        self._words[_STATE] = int(state)
        self.tick()

    def mark_fault(self) -> None:
        """A scripted fault is about to strike this process."""
        self._times[_FAULT_AT] = time.monotonic()
