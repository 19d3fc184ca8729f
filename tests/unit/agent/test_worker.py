"""Signs of life and the start of detection, from the progress page."""

from __future__ import annotations

import mmap
import struct
import time

import pytest

from resihp_agent.silence import Silence
from resihp_agent.worker import Leaving, Worker, free_device
from resihp_messages import JobSpec
from resihp_messages.page import PAGE_BYTES, PageState


def worker(started_s: float) -> Worker:
    return Worker(
        start=0,
        job="demo",
        rank=3,
        pid=17,
        spec=JobSpec(),
        memory=mmap.mmap(-1, PAGE_BYTES),
        started_s=started_s,
        silence=Silence(started_s),
        last_sign_s=started_s,
        observed_s=started_s,
    )


def test_a_changed_tick_is_a_sign_with_the_workers_own_stamp() -> None:
    start_s = time.monotonic()
    one = worker(start_s)
    assert one.silent_s(start_s + 2.0) == pytest.approx(2.0)  # the fork is the first sign
    one.page.tick()
    stamp_s = one.progress().alive_at_s
    one.observe(stamp_s + 0.04)
    assert one.last_sign_s == stamp_s
    one.observe(stamp_s + 3.0)
    assert one.silent_s(stamp_s + 3.0) == pytest.approx(3.0)


@pytest.mark.parametrize("torn", [0.0, 1e300, -5.0])
def test_a_torn_stamp_is_not_believed(torn: float) -> None:
    one = worker(100.0)
    one.memory[:8] = struct.pack("<Q", 1)
    one.memory[40:48] = struct.pack("<d", torn)
    one.observe(130.0)
    assert one.last_sign_s == 130.0
    assert one.silent_s(130.5) == pytest.approx(0.5)
    one.observe(131.0)
    assert one.last_sign_s == 130.0


def test_detection_counts_from_the_faults_own_stamp() -> None:
    one = worker(time.monotonic())
    one.page.tick()
    one.observe(time.monotonic())
    one.page.mark_fault()
    fault_s = one.progress().fault_at_s
    assert one.detect_s(fault_s + 1.25) == pytest.approx(1.25)


def test_a_fault_that_was_survived_is_not_the_start() -> None:
    one = worker(50.0)
    one.memory[48:56] = struct.pack("<d", 60.0)
    one.last_sign_s = 70.0
    assert one.detect_s(71.0) == pytest.approx(1.0)


def test_a_fence_is_a_fault_whatever_follows() -> None:
    one = worker(0.0)
    one.fence_noticed_s = 5.0
    one.leave(Leaving.STOPPED, 6.0)
    assert one.leaving is None
    two = worker(0.0)
    two.leave(Leaving.FINISHED, 1.0)
    two.leave(Leaving.STOPPED, 2.0)
    assert (two.leaving, two.leaving_since_s) == (Leaving.FINISHED, 1.0)


def test_beat_says_where_the_worker_is() -> None:
    one = worker(10.0)
    one.page.place(epoch=2, iteration=7, state=PageState.MOVING)
    one.page.operation()
    beat = one.beat(10.5)
    assert (beat.state, beat.epoch, beat.iteration, beat.ops, beat.rank, beat.pid) == ("moving", 2, 7, 1, 3, 17)
    assert beat.silent_s == pytest.approx(0.5)


def test_a_page_of_another_version_reads_as_starting() -> None:
    one = worker(10.0)
    one.memory[32:40] = struct.pack("<Q", 99)
    assert one.progress().state is PageState.STARTING


def test_a_worker_gets_a_device_that_no_living_one_has() -> None:
    workers = [worker(0.0) for _ in range(4)]
    for n, one in enumerate(workers):
        one.device_index = free_device(workers[:n])
    assert [w.device_index for w in workers] == [0, 1, 2, 3]
    del workers[1]
    assert free_device(workers) == 1
    assert free_device([]) == 0
