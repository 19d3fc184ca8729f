"""Ranks of an attached job: idle real processes for which the test speaks to an agent in its own loop."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import resihp_attach
from resihp_agent.agent import Agent
from resihp_attach import place, stuck
from resihp_messages import AnyEnvelope, Body, JobSpec, command
from resihp_messages.attach import AttachBeat, AttachBye, AttachHello, AttachIteration, LastCollective
from resihp_scheduler.attached import peers
from support.waiting import wait_for

B = TypeVar("B", bound=Body)
SITE = Path(resihp_attach.__file__).parent / "site"
_IDLE = "import sys; sys.stdin.read()"


@dataclass
class Stage:
    """The agent, what it said, and the ranks."""

    agent: Agent
    said: list[AnyEnvelope]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, rank: int, *, world: int = 3, start: int = 0, hang_s: float = 60.0) -> None:
        """A process that says hello as this rank."""
        process = subprocess.Popen([sys.executable, "-S", "-c", _IDLE], stdin=subprocess.PIPE)
        self.processes[rank] = process
        hello = AttachHello(
            job="j", rank=rank, world_size=world, local_rank=rank, local_world_size=world, start=start, hang_s=hang_s
        )
        self.agent.attached.frame(process.pid, hello)

    def beat(self, rank: int, *, quiet_s: float = 0.0, seq: int = 0) -> None:
        last = LastCollective(op="all_reduce", seq=seq, group="dp") if seq else None
        self.agent.attached.frame(
            self.processes[rank].pid,
            AttachBeat(iteration=1, ops=1, quiet_s=quiet_s, collective=last, where="train.py:3 main"),
        )

    def iteration(self, rank: int, number: int) -> None:
        frame = AttachIteration(
            iteration=number,
            step_s=0.1,
            unit_forward_s=(0.01, 0.02),
            unit_backward_s=(0.03, 0.04),
            unit_tokens=(5, 6),
            unit_sum_sq_len=(25, 36),
            wait_s=0.005,
            rss_bytes=1000 + number,
            loss=2.5,
        )
        self.agent.attached.frame(self.processes[rank].pid, frame)

    def finish(self, rank: int, error: str = "") -> None:
        self.agent.attached.frame(self.processes[rank].pid, AttachBye(iteration=1, error=error))
        process = self.processes[rank]
        assert process.stdin is not None
        process.stdin.close()

    def send(self, rank: int, number: signal.Signals) -> None:
        self.processes[rank].send_signal(number)

    async def accept(self) -> None:
        """Play the scheduler: the job is known."""
        envelope = await self.heard("WorkersAttached")
        spec = JobSpec.model_validate(envelope.body.spec)  # type: ignore[attr-defined]
        plan = peers(spec, 1)
        body = command.WatchWorkers(
            node="n0", token=1, spec=spec, reconfiguration_id="r1", plan=plan.to_dict(), digest=plan.digest
        )
        self.agent.attached.accept(AnyEnvelope.of(body, job="j", source="scheduler", incarnation="s", epoch=1), body)

    async def heard(self, name: str, number: int = 1, within_s: float = 10.0) -> AnyEnvelope:
        """The number-th message of this name; waits for it."""

        def found() -> list[AnyEnvelope]:
            return [e for e in self.said if e.schema_.startswith(f"{name}.")]

        await wait_for(lambda: len(found()) >= number, within_s, what=f"{number} x {name}")
        return found()[number - 1]

    def names(self) -> list[str]:
        return [e.schema_.partition(".")[0] for e in self.said]

    def close(self) -> None:
        """End every process."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def listen(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    sock.settimeout(60.0)
    return sock


def frames_of(sock: socket.socket) -> list[dict[str, Any]]:
    """Everything that one client sends."""
    line, _ = sock.accept()
    with line, line.makefile("rb") as stream:
        found = []
        while header := stream.read(4):
            (length,) = struct.unpack(">I", header)
            found.append(json.loads(stream.read(length)))
    return found


def hooked(folder: Path, **environment: str) -> dict[str, str]:
    """Environment of a process whose client speaks to `folder`/a.sock."""
    return {
        **os.environ, "PYTHONPATH": str(SITE), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
        place.SOCKET: str(folder / "a.sock"), place.JOB: "j", stuck.BUFFER: "64", **environment,
    }  # fmt: skip
