"""The progress page: one writer, one reader, no lock."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from typing import get_args

import pytest

from resihp_messages.page import PAGE_BYTES, PageState, ProgressPage
from resihp_messages.report import WorkerState


@pytest.fixture
def memory() -> mmap.mmap:
    return mmap.mmap(-1, PAGE_BYTES)


def test_a_fresh_page_says_never(memory: mmap.mmap) -> None:
    progress = ProgressPage(memory).read()
    assert (progress.tick, progress.ops, progress.alive_at_s, progress.fault_at_s) == (0, 0, 0.0, 0.0)
    assert progress.state is PageState.STARTING


def test_writer_and_reader_see_one_page(memory: mmap.mmap) -> None:
    writer, reader = ProgressPage(memory), ProgressPage(memory)
    before = time.monotonic()
    writer.place(epoch=2, iteration=15, state=PageState.TRAINING)
    writer.operation()
    writer.operation()
    writer.tick()
    writer.mark_fault()
    after = time.monotonic()
    seen = reader.read()
    assert (seen.tick, seen.ops, seen.epoch, seen.iteration, seen.state) == (4, 2, 2, 15, PageState.TRAINING)
    assert before <= seen.alive_at_s <= seen.fault_at_s <= after


def test_layout_is_fixed(memory: mmap.mmap) -> None:
    """Agent and worker may be of different builds: the offsets are part of the contract."""
    page = ProgressPage(memory)
    page.place(epoch=3, iteration=4, state=PageState.MOVING)
    page.mark_fault()
    seen = page.read()
    expected = (1, 0, 3, 4, PageState.MOVING, seen.alive_at_s, seen.fault_at_s)
    assert struct.unpack_from("=QQQQQdd", memory, 0) == expected


def test_an_unknown_state_is_an_error(memory: mmap.mmap) -> None:
    struct.pack_into("=Q", memory, 32, 99)
    with pytest.raises(ValueError):
        ProgressPage(memory).read()


def test_states_are_those_of_the_beats() -> None:
    assert tuple(state.name.lower() for state in PageState) == get_args(WorkerState)


def test_the_size_is_that_of_the_contract() -> None:
    with pytest.raises(ValueError, match="has 64 bytes"):
        ProgressPage(mmap.mmap(-1, 16))


def test_a_concurrent_reader_never_sees_a_torn_time(memory: mmap.mmap) -> None:
    """A child ticks as fast as it can; every time read must lie between its start and now. (With byte-wise copies of
    doubles, as `struct` makes them, this fails within a second.)"""
    page = ProgressPage(memory)
    started = time.monotonic()
    page.tick()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        while os.getppid() == parent:
            for _ in range(200):
                page.tick()
        os._exit(0)
    try:
        reads, last = 0, 0.0
        while time.monotonic() < started + 0.6 or reads <= 100:
            seen = page.read()
            assert started <= seen.alive_at_s <= time.monotonic()
            assert seen.alive_at_s >= last
            last, reads = seen.alive_at_s, reads + 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
