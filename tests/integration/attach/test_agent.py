"""Ranks that come, work, stall, hang, die and finish, as their node's agent tells the fleet."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

from support.attach import Stage
from support.waiting import wait_for


def body(envelope: Any) -> Any:
    return envelope.body


async def test_ranks_are_announced_together_and_report_once_known(stage: Stage) -> None:
    for rank in range(3):
        stage.start(rank)
    attached = body(await stage.heard("WorkersAttached"))
    assert attached.ranks == (0, 1, 2)
    assert attached.pids == tuple(stage.processes[rank].pid for rank in range(3))
    for rank in range(3):
        stage.iteration(rank, 1)
    assert stage.agent.attached.num_early == 3  # the scheduler does not know the job yet
    await stage.accept()
    for rank in range(3):
        stage.iteration(rank, 2)
    report = body(await stage.heard("IterationReport"))
    assert (report.iteration, report.ranks, report.reconfiguration_id) == (2, (0, 1, 2), "r1")
    assert report.forward_s == (0.03,) * 3
    assert report.backward_s == (0.07,) * 3
    assert report.unit_tokens == ((5, 6),) * 3
    assert (report.global_tokens, report.loss) == (33, 2.5)
    beats = list(stage.agent.attached.beats(stage.agent._clock()))
    assert [(b.rank, b.iteration, b.state) for b in beats] == [(r, 2, "training") for r in range(3)]


async def test_a_death_is_told_from_what_follows_it(stage: Stage) -> None:
    for rank in range(3):
        stage.start(rank)
    await stage.accept()
    stage.send(1, signal.SIGKILL)
    stage.finish(0, error="RuntimeError: connection closed by peer")
    stage.send(2, signal.SIGTERM)
    exited = body(await stage.heard("WorkerExited"))
    assert (exited.rank, exited.exit_code, exited.fenced) == (1, -9, False)
    failed = body(await stage.heard("WorkerFailed"))
    assert (failed.rank, failed.error) == (1, "SIGKILL")
    assert stage.names().count("WorkerExited") == 1


async def test_ranks_that_are_done_finish(stage: Stage) -> None:
    for rank in range(3):
        stage.start(rank)
    await stage.accept()
    for rank in range(3):
        stage.iteration(rank, 1)
        stage.finish(rank)
    done = [body(await stage.heard("WorkerFinished", number)) for number in (1, 2, 3)]
    assert sorted(d.rank for d in done) == [0, 1, 2]
    assert {(d.committed, d.final_loss) for d in done} == {(1, 2.5)}
    await wait_for(lambda: not stage.agent.attached.num_ranks, 5.0, what="all gone")
    assert "WorkerFailed" not in stage.names()


async def test_a_stopped_rank_is_named_and_may_go_on(stage: Stage) -> None:
    for rank in range(3):
        stage.start(rank)
    await stage.accept()
    stage.send(2, signal.SIGSTOP)
    stalled = body(await stage.heard("WorkerStalled"))
    assert (stalled.rank, stalled.process_state, stalled.fenced) == (2, "T", False)
    stage.send(2, signal.SIGCONT)
    stage.beat(2)
    assert body(await stage.heard("WorkerResumed")).rank == 2
    assert stage.processes[2].poll() is None  # it belongs to its launcher: nobody killed it


async def test_a_hang_names_every_ranks_last_collective(stage: Stage) -> None:
    for rank in range(3):
        stage.start(rank)
    await stage.accept()
    for rank in range(3):
        stage.iteration(rank, 1)
        stage.beat(rank, quiet_s=61.0, seq=8 if rank == 1 else 9)
    hung = body(await stage.heard("WorkersHung"))
    assert [(r.rank, r.seq, r.op) for r in hung.ranks] == [
        (0, 9, "all_reduce"),
        (1, 8, "all_reduce"),
        (2, 9, "all_reduce"),
    ]
    assert hung.ranks[0].where == "train.py:3 main"
    assert stage.names().count("WorkersHung") == 1


async def test_a_launcher_may_start_the_job_again(stage: Stage) -> None:
    for rank in range(3):
        stage.start(rank)
    await stage.accept()
    stage.send(0, signal.SIGKILL)
    await stage.heard("WorkerExited")
    old = dict(stage.processes)
    for rank in range(3):
        stage.start(rank, start=1)
    again = body(await stage.heard("WorkersAttached", 2))
    assert (again.start, again.ranks) == (1, (0, 1, 2))
    assert "WorkerFailed" not in stage.names()
    for process in old.values():
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


async def test_broken_frames_cut_one_line_only(stage: Stage, tmp_path: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "attach.sock"))
    writer.write(b"\x00\x00\x00\x02{]")
    assert await asyncio.wait_for(reader.read(), 120) == b""
    writer.close()
    assert stage.agent.num_malformed_frames == 1
    assert stage.agent.is_ready


async def test_a_second_process_of_a_living_rank_is_turned_away(stage: Stage) -> None:
    stage.start(0)
    first = stage.processes[0]
    stage.start(0)
    second = stage.processes[0]
    stage.iteration(0, 1)
    assert next(stage.agent.attached.beats(0.0)).pid == first.pid
    assert stage.agent.attached.num_early == 0
    for process in (first, second):
        process.kill()
        process.wait()
    assert first.stdin is not None
    first.stdin.close()


async def test_ranks_that_send_in_bursts_make_whole_reports(stage: Stage) -> None:
    for rank in range(3):
        stage.start(rank)
    await stage.accept()
    for rank in range(3):
        for number in range(1, 11):
            stage.iteration(rank, number)
    reports = [body(await stage.heard("IterationReport", number)) for number in range(1, 11)]
    assert [r.iteration for r in reports] == list(range(1, 11))
    assert {r.ranks for r in reports} == {(0, 1, 2)}
