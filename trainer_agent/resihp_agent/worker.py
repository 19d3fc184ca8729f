"""One worker process as its agent knows it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from mmap import mmap

from resihp_agent.link import WorkerLink
from resihp_agent.silence import Silence
from resihp_messages import JobSpec
from resihp_messages.page import PageState, Progress, ProgressPage
from resihp_messages.report import WorkerBeat, WorkerState

_STATES: tuple[WorkerState, ...] = (
    "starting",
    "waiting",
    "rebuilding",
    "moving",
    "training",
    "finishing",
    "standby",
    "stopped",
)
_FAULT_SURVIVED_S = 1.0
"""A worker that ticks this long after a fault mark has survived that fault (SIGSTOP, then SIGCONT)."""


class Leaving(StrEnum):
    """Why the exit of a worker is no fault."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    """It said why itself (`WorkerFailed`); its peers lose it all the same."""


def free_device(workers: Iterable[Worker]) -> int:
    """The first of a node's devices that none of these living workers has."""
    taken = {worker.device_index for worker in workers}
    return next(i for i in range(len(taken) + 1) if i not in taken)


@dataclass(eq=False)
class Worker:
    """State of a worker from fork to exit. Times are monotonic seconds of this host."""

    job: str
    rank: int
    start: int
    """How many workers this rank had before this one."""
    pid: int
    spec: JobSpec
    memory: mmap
    started_s: float
    silence: Silence
    last_sign_s: float
    """Newest sign of life; the fork counts as the first."""
    observed_s: float
    device_index: int = 0
    """Of the node's devices, the one that it has while it lives."""
    tick: int = 0
    pidfd: int | None = None
    link: WorkerLink | None = None
    greeted: bool = False
    committed: int = 0
    """Newest iteration it reported as committed."""
    leaving: Leaving | None = None
    leaving_since_s: float = 0.0
    link_closed_s: float | None = None
    fence_noticed_s: float | None = None
    """When the reason for the fence was noticed; set exactly when the worker has been fenced."""
    fenced_s: float = 0.0
    gone: bool = False

    @property
    def page(self) -> ProgressPage:
        return ProgressPage(self.memory)

    def progress(self) -> Progress:
        """The progress page now. A page that was torn by a dying writer reads as `STARTING`."""
        try:
            return self.page.read()
        except ValueError:
            return Progress(0, 0, 0, 0, PageState.STARTING, 0.0, 0.0)

    def observe(self, now_s: float) -> None:
        """Look at the page. What counts as a sign of life is that `tick` has *changed*: a value that a writer was
        writing when it was stopped may be any number, but it does not go on changing."""
        progress = self.progress()
        if progress.tick != self.tick:
            self.tick = progress.tick
            # The worker's own stamp is exact; it is believed if it lies between our last two looks.
            stamp_s = progress.alive_at_s
            self.last_sign_s = stamp_s if self.observed_s <= stamp_s <= now_s else now_s
        self.observed_s = now_s

    def silent_s(self, now_s: float) -> float:
        """Age of the last sign of life; the fork counts as the first."""
        return max(0.0, now_s - self.last_sign_s)

    def detect_s(self, noticed_s: float) -> float:
        """From the fault to its notice: from the fault's own stamp if it left one, else from the last sign of life."""
        last_s, fault_s = self.last_sign_s, self.progress().fault_at_s
        if self.started_s <= fault_s <= noticed_s and last_s - fault_s < _FAULT_SURVIVED_S:
            last_s = fault_s
        return max(0.0, noticed_s - last_s)

    def leave(self, why: Leaving, now_s: float) -> None:
        """From now on its exit is expected. The first reason stays, and a fence is a fault whatever follows."""
        if self.leaving is None and self.fence_noticed_s is None:
            self.leaving, self.leaving_since_s = why, now_s

    def beat(self, now_s: float) -> WorkerBeat:
        progress = self.progress()
        return WorkerBeat(
            job=self.job,
            rank=self.rank,
            pid=self.pid,
            state=_STATES[progress.state],
            epoch=progress.epoch,
            iteration=progress.iteration,
            ops=progress.ops,
            silent_s=self.silent_s(now_s),
        )

    def release(self) -> None:
        """Give back the descriptors. The page stays readable until the object goes."""
        if self.link is not None:
            self.link.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
