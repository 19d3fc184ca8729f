"""Plays the agents for a job of real workers: configures them, delivers plans, notices deaths and freezes, aborts.

Everything that a worker sees is what a real agent would send; what differs is that plans come from the caller.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from resihp_messages import JobSpec, new_id
from resihp_messages.link import (
    HEADER,
    AbortEpoch,
    Configure,
    DownFrame,
    Failed,
    Finished,
    FinishNow,
    Hello,
    InstallPlan,
    IterationCommitted,
    PlanInstalled,
    UpFrame,
    frame,
    parse_up,
    payload_length,
)
from resihp_plan import ParallelPlan
from resihp_trainer import result
from resihp_trainer.trials.zygote_client import SpawnedWorker, ZygoteClient

F = TypeVar("F")
HANG_S = 60.0
"""Generous bound: a job that makes no step towards its end for this long hangs."""
STALL_S = 1.0


class TrialFailed(Exception):
    """A job did what it must not do; the text says what, with the ends of the workers' logs."""


class TrainerJob:
    """One job's workers on a zygote that several jobs may share. `frames[rank]` is everything a rank ever sent."""

    def __init__(self, zygote: ZygoteClient, store: str, spec: JobSpec, ranks: Iterable[int]) -> None:
        self.zygote, self.store, self.spec = zygote, store, spec
        self.workers: dict[int, SpawnedWorker] = {}
        self.frames: dict[int, list[UpFrame]] = {}
        self.dead: dict[int, int] = {}
        """Rank -> exit code of workers that ended without `Finished` and were not started again."""
        self.starts: dict[int, int] = {}
        """Rank -> which start of it was the last; the first is 0."""
        self.started_s: dict[int, float] = {}
        """Rank -> monotonic time of that start."""
        self.plans: list[ParallelPlan] = []
        self.noticed_s = 0.0
        self.back_to: int | None = None
        """What recoveries say: replicas differ, and agreed after this iteration."""
        self.fences = True
        """Whether frozen workers are killed."""
        self._incarnation = new_id()
        self._buffers: dict[int, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        self._pidfds: dict[int, int] = {}
        try:
            for rank in ranks:
                self.start(rank)
            self._await_hello()
        except BaseException:
            self.close()
            raise

    def _await_hello(self) -> None:
        self.wait(lambda: all(self.last(r, Hello) for r in self.workers), "hello")

    # --- down -----------------------------------------------------------------------------------------------------

    def start(self, rank: int) -> None:
        """Fork a worker and configure it. A rank that had one is started again: it joins at the next plan with it."""
        worker = self.zygote.spawn(rank, self.spec.name)
        self.starts[rank], self.started_s[rank] = self.starts.get(rank, -1) + 1, time.monotonic()
        self.dead.pop(rank, None)
        self.workers[rank], self.frames[rank], self._buffers[rank] = worker, [], bytearray()
        self._pidfds[rank] = os.pidfd_open(worker.pid)
        self._selector.register(worker.link, selectors.EVENT_READ, rank)
        self._selector.register(self._pidfds[rank], selectors.EVENT_READ, rank)
        configure = Configure(
            job=self.spec.name,
            rank=rank,
            node="n0",
            comm_host="127.0.0.1",
            spec=self.spec,
            start=self.starts[rank],
        )
        self.send([rank], configure)

    def send(self, ranks: Iterable[int], message: DownFrame) -> None:
        """Send a frame to living workers."""
        for rank in ranks:
            if rank in self.workers:
                try:
                    self.workers[rank].link.sendall(frame(message))
                except OSError:  # it has just ended; the pidfd will say so
                    continue

    def install(
        self, plan: ParallelPlan, mode: str, ranks: Collection[int] | None = None, digest: str | None = None
    ) -> None:
        """Deliver a plan to its world (or to `ranks`), with all earlier plans as possible bases."""
        named = sorted({*plan.world, *self.dead})
        command = InstallPlan.model_validate(
            {
                "mode": mode,
                "epoch": plan.epoch,
                "reconfiguration_id": self._issue_of(plan),
                "plan": plan.to_dict(),
                "digest": digest or plan.digest,
                "base_plans": [p.to_dict() for p in self.plans],
                "store_address": self.store,
                "dead_ranks": sorted(self.dead),
                "back_to": self.back_to if mode == "recovery" else None,
                "placement": [{"node": "n0", "ranks": named, "starts": [self.starts[r] for r in named]}],
            }
        )
        if plan not in self.plans:
            self.plans.append(plan)
        self.send(plan.world if ranks is None else ranks, command)

    def _issue_of(self, plan: ParallelPlan) -> str:
        """Unique over all jobs that use the store, as the scheduler's ids are; equal if a plan is delivered again."""
        return f"{self._incarnation}-{plan.epoch}"

    def abort(self, dead: Collection[int] = (), epoch: int = 0) -> None:
        """Tell every worker about deaths (or a broken epoch), as the agents do."""
        message = AbortEpoch(
            dead_ranks=tuple(dead),
            starts=tuple(self.starts[rank] for rank in dead),
            epoch=epoch,
            noticed_s=self.noticed_s,
            reason="trial",
        )
        self.send(list(self.workers), message)

    # --- up -------------------------------------------------------------------------------------------------------

    def last(self, rank: int, kind: type[F]) -> F | None:
        """The newest frame of a kind from a rank."""
        return next((f for f in reversed(self.frames[rank]) if isinstance(f, kind)), None)

    def all(self, kind: type[F], epoch: int | None = None) -> list[tuple[int, F]]:
        """(rank, frame) of every frame of a kind, of one epoch if given."""
        return [
            (rank, f)
            for rank, frames in self.frames.items()
            for f in frames
            if isinstance(f, kind) and (epoch is None or getattr(f, "epoch", None) == epoch)
        ]

    def committed(self, rank: int) -> int:
        """The newest iteration that a rank reported."""
        step = self.last(rank, IterationCommitted)
        return step.iteration if step else 0

    def is_installed(self, plan: ParallelPlan) -> bool:
        """Whether every living rank of the plan's world said so."""
        said = {rank for rank, _ in self.all(PlanInstalled, plan.epoch)}
        return set(plan.world) <= said | set(self.dead)

    @property
    def last_plan(self) -> ParallelPlan:
        """The newest plan that a rank installed: a planned one may come too late for the job."""
        installed = {f.epoch for _, f in self.all(PlanInstalled)}
        return next(plan for plan in reversed(self.plans) if plan.epoch in installed)

    def pump(self, timeout_s: float = 0.05) -> list[int]:
        """Read what has arrived; returns ranks that died just now (fenced ones included)."""
        died = []
        for key, _ in self._selector.select(timeout_s):
            rank = key.data
            if key.fileobj == self._pidfds.get(rank):
                died += self._bury(rank)
            elif rank in self.workers:
                self._read(rank)
        if self.fences:
            self._fence_frozen()
        return died

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = HANG_S) -> None:
        """Pump until the condition holds; unexpected deaths end the trial."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            died = self.pump()
            if died:
                raise TrialFailed(f"ranks {died} died while waiting for {what}: {self.logs(died)}")
            self.check_failures()
            if time.monotonic() >= deadline:
                raise TrialFailed(f"not within {timeout_s} s: {what}; {self.situation()}")

    def run(
        self,
        on_loss: Callable[[ParallelPlan, list[int]], ParallelPlan] | None = None,
        on_pump: Callable[[], None] | None = None,
    ) -> None:
        """Serve the job to its end: after deaths, abort and deliver the plan that `on_loss(newest plan, dead)` returns.

        `on_pump` is called all the time (planned changes, more faults). Returns when every living worker has finished.
        """
        deadline = time.monotonic() + HANG_S
        heard = 0
        while self.workers:
            died = self.pump()
            self.check_failures()
            lost = [rank for rank in died if not self.last(rank, Finished)]
            if lost:
                self.abort(lost)
                if any(self.last(rank, Finished) for rank in self.frames):
                    self.send(list(self.workers), FinishNow())
                else:
                    if on_loss is None:
                        raise TrialFailed(f"ranks {lost} died: {self.logs(lost)}")
                    self.install(on_loss(self.plans[-1], lost), "recovery")
            if on_pump is not None:
                on_pump()
            now_heard = sum(len(f) for f in self.frames.values())
            if now_heard != heard:
                heard, deadline = now_heard, time.monotonic() + HANG_S
            if time.monotonic() >= deadline:
                raise TrialFailed(f"nothing happened for {HANG_S} s; {self.situation()}")

    def check_failures(self) -> None:
        """A `Failed` frame ends the trial at once."""
        if failed := self.all(Failed):
            raise TrialFailed(f"{failed}: {self.logs(r for r, _ in failed)}")

    def situation(self) -> str:
        """For the text of failures."""
        return "; ".join(
            f"rank {r}: {w.page.read().state.name} e{w.page.read().epoch} i{w.page.read().iteration}, "
            f"last frame {self.frames[r][-1] if self.frames[r] else None}"
            for r, w in self.workers.items()
        )

    def logs(self, ranks: Iterable[int]) -> str:
        """Ends of the workers' logs."""
        return "\n".join(f"rank {r}: {(self.zygote.folder / f'rank{r}.log').read_text()[-3000:]}" for r in ranks)

    def kill(self, rank: int) -> None:
        """SIGKILL from outside, now; the death is noticed as any other. Nothing happens to a worker that has ended:
        the zygote may have reaped it while its end has not been seen here."""
        self.send_signal(rank, signal.SIGKILL)

    def send_signal(self, rank: int, number: signal.Signals) -> None:
        """To the worker's process group; nothing happens if it has ended."""
        if rank in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.workers[rank].pid, number)

    def close(self) -> None:
        """Kill what is left."""
        for rank in list(self.workers):
            self.kill(rank)
            self._bury(rank)

    def _fence_frozen(self) -> None:
        for rank, worker in self.workers.items():
            progress = worker.page.read()
            since_s = max(progress.alive_at_s, self.started_s[rank])
            if time.monotonic() - since_s > STALL_S and worker.state() == "T":
                self.kill(rank)

    def _read(self, rank: int) -> None:
        link, buffer = self.workers[rank].link, self._buffers[rank]
        try:
            data = link.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(link)
        buffer += data
        while len(buffer) >= HEADER.size:
            size = HEADER.size + payload_length(bytes(buffer[: HEADER.size]))
            if len(buffer) < size:
                break
            self.frames[rank].append(parse_up(bytes(buffer[HEADER.size : size])))
            del buffer[:size]

    def _bury(self, rank: int) -> list[int]:
        """The process is gone: read its last frames. Returns the rank if it was an unexpected end."""
        worker = self.workers[rank]
        self.noticed_s = time.monotonic()
        while any(k.fileobj is worker.link for k in self._selector.get_map().values()):
            self._read(rank)
        del self.workers[rank]
        self._selector.unregister(self._pidfds[rank])
        os.close(self._pidfds.pop(rank))
        worker.link.close()
        code = self.zygote.wait_exit(worker.pid)
        if code == 0:
            return []
        self.dead[rank] = code
        return [rank]


def result_folder(job: TrainerJob) -> Path:
    """Where the job's last plan left its shards."""
    if job.spec.output_path is None:
        raise ValueError(f"job {job.spec.name} keeps no result: output_dir is not set")
    return result.result_folder(job.spec.output_path, job.last_plan.epoch)
