"""Memory that was freed goes back to the system when a layout is dropped."""

from __future__ import annotations

import os

import psutil

from resihp_trainer import allocator


def test_freed_blocks_leave_the_resident_size() -> None:
    process = psutil.Process(os.getpid())
    blocks = [bytearray(64 << 10) for _ in range(512)]  # 32 MiB below the size that malloc maps on its own
    full = process.memory_info().rss
    fence = blocks.pop()  # a block on top keeps the heap from shrinking by itself
    blocks.clear()
    allocator.give_back()
    assert full - process.memory_info().rss > 16 << 20
    assert len(fence) == 64 << 10


def test_arenas_can_be_limited_twice() -> None:
    allocator.limit_arenas()
    allocator.limit_arenas()
