"""What workers say about evaluations and checkpoints, and what the agent makes of it."""

from __future__ import annotations

import mmap

import pytest

from resihp_agent.columns import ReportColumns
from resihp_agent.frames import FrameHandler
from resihp_agent.job import LocalJob
from resihp_agent.silence import Silence
from resihp_agent.worker import Worker
from resihp_messages import Body, JobSpec, event, link
from resihp_messages.page import PAGE_BYTES


class Heard:
    """Plays the announcer."""

    def __init__(self) -> None:
        self.said: list[tuple[int, Body]] = []

    def say(self, body: Body, *, job: str, epoch: int = 0, correlation_id: str = "") -> None:
        assert job == "demo"
        self.said.append((epoch, body))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def handler(heard: Heard) -> FrameHandler:
    return FrameHandler(heard, node="n0", clock=lambda: 1.0, link_grace_s=0.5)  # type: ignore[arg-type]


def worker(rank: int) -> Worker:
    return Worker(
        start=0,
        job="demo",
        rank=rank,
        pid=100 + rank,
        spec=JobSpec(),
        memory=mmap.mmap(-1, PAGE_BYTES),
        started_s=0.0,
        silence=Silence(0.0),
        last_sign_s=0.0,
        observed_s=0.0,
    )


def test_a_held_out_loss_is_an_event(handler: FrameHandler, heard: Heard) -> None:
    said = link.Evaluated(epoch=3, iteration=20, loss=3.25, tokens=512, seconds=0.25)
    handler(LocalJob("demo", ReportColumns("n0")), worker(4), said)
    wanted = event.EvaluationFinished(node="n0", rank=4, iteration=20, loss=3.25, tokens=512, seconds=0.25)
    assert heard.said == [(3, wanted)]


def test_a_full_disk_is_said_once_for_all_ranks_that_write(handler: FrameHandler, heard: Heard) -> None:
    job = LocalJob("demo", ReportColumns("n0"))
    for iteration in (10, 20):
        for rank in (2, 0, 1):
            said = link.CheckpointFailed(iteration=iteration, path="/ckpt", error=f"no room for rank {rank}")
            handler(job, worker(rank), said)
    bodies = [body for _, body in heard.said]
    assert bodies == [
        event.CheckpointFailed(node="n0", rank=2, iteration=k, path="/ckpt", error="no room for rank 2")
        for k in (10, 20)
    ]
