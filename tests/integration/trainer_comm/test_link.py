"""The worker's end of the link: order, loss, slow agents, broken frames."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from resihp_messages import pack
from resihp_messages.link import (
    HEADER,
    DownFrame,
    Failed,
    FinishNow,
    IterationCommitted,
    PlanHeld,
    StopNow,
    UpFrame,
    frame,
    parse_up,
)
from resihp_trainer.link import Link
from support.waiting import wait_for_blocking


@dataclass
class Ends:
    """Both ends, and what the worker's end saw."""

    agent: socket.socket
    link: Link
    frames: list[DownFrame] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)

    def read(self) -> UpFrame:
        (size,) = HEADER.unpack(self._exactly(HEADER.size))
        return parse_up(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.agent.recv(size - len(data))
            assert chunk
            data += chunk
        return data


@pytest.fixture
def ends() -> Iterator[Ends]:
    agent, worker = socket.socketpair()
    agent.settimeout(10.0)
    frames: list[DownFrame] = []
    losses: list[int] = []
    link = Link(worker, frames.append, on_lost=lambda: losses.append(1), max_waiting_reports=4)
    link.start()
    yield Ends(agent, link, frames, losses)
    agent.close()
    wait_for_blocking(lambda: losses, what="loss noticed")
    worker.close()


def report(iteration: int, *, first: bool = False) -> IterationCommitted:
    zero_s = dict.fromkeys(("step_s", "forward_s", "backward_s", "tp_wait_s", "pp_wait_s", "dp_wait_s"), 0.0)
    zero = dict.fromkeys(("tokens", "sum_sq_len", "rss_bytes", "global_tokens", "samples_expected", "samples_once"), 0)
    return IterationCommitted(epoch=1, iteration=iteration, first_of_epoch=first, loss=None, **zero_s, **zero)


def held(epoch: int) -> PlanHeld:
    return PlanHeld(epoch=epoch, reconfiguration_id="r", digest="0" * 64)


def test_frames_arrive_in_order_both_ways(ends: Ends) -> None:
    for epoch in range(5):
        ends.link.send(held(epoch))
    assert [ends.read() for _ in range(5)] == [held(epoch) for epoch in range(5)]
    sent = [FinishNow(), StopNow(reason="x"), FinishNow()]
    raw = b"".join(frame(message) for message in sent)
    for byte in raw:  # in the smallest pieces
        ends.agent.sendall(bytes([byte]))
    wait_for_blocking(lambda: len(ends.frames) == 3)
    assert ends.frames == sent


def test_a_slow_agent_costs_reports_but_no_control_frame(ends: Ends) -> None:
    """The agent does not read: the socket fills, `send` returns, reports beyond the bound are dropped and counted."""
    number = 0
    while ends.link.flush(0.1) or ends.link.dropped == 0:  # until the socket is full and the bound is reached
        for _ in range(100):
            number += 1
            ends.link.send(report(number))
    ends.link.send(report(number + 1, first=True))
    for epoch in range(50):
        ends.link.send(held(epoch))
    received = []
    while len(received) < 51 + number - ends.link.dropped:
        received.append(ends.read())
    assert [f for f in received if isinstance(f, PlanHeld)] == [held(epoch) for epoch in range(50)]
    iterations = [f.iteration for f in received if isinstance(f, IterationCommitted)]
    assert iterations == sorted(iterations)
    assert iterations[-1] == number + 1  # the first of an epoch is never dropped
    assert ends.link.flush(5.0)


def test_flush_waits_until_the_kernel_has_everything(ends: Ends) -> None:
    ends.link.send(Failed(error="x" * 4000))
    assert ends.link.flush(5.0)
    assert ends.read() == Failed(error="x" * 4000)


def test_broken_frames_are_skipped_and_counted(ends: Ends) -> None:
    for raw in (b"\xc1", pack({"type": "unknown"}), pack([1, 2]), pack({"type": "stop_now", "reason": 3})):
        ends.agent.sendall(struct.pack(">I", len(raw)) + raw)
    ends.agent.sendall(frame(FinishNow()))
    wait_for_blocking(lambda: ends.frames == [FinishNow()])
    assert ends.link.malformed == 4
    assert ends.losses == []


def test_a_broken_stream_is_a_lost_agent(ends: Ends) -> None:
    ends.agent.sendall(struct.pack(">I", 1 << 31))
    wait_for_blocking(lambda: ends.losses == [1])


def test_the_end_of_the_stream_is_noticed_once(ends: Ends) -> None:
    ends.agent.close()
    wait_for_blocking(lambda: ends.losses)
    ends.link.send(held(1))  # goes nowhere, harms nobody
    assert not ends.link.flush(0.05)
    assert ends.losses == [1]
