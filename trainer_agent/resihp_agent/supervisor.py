"""Starts, watches and fences the worker processes of this node.

Three signals are kept apart (design of the progress page): a process *exists* (pidfd), is *alive* (ticks), makes
*progress* (operations). An exit is noticed by the kernel's pidfd within milliseconds; a process that exists but shows
no sign of life is fenced with SIGKILL before anybody is told to go on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import structlog

from resihp_agent import process
from resihp_agent.announcer import Announcer
from resihp_agent.columns import ReportColumns
from resihp_agent.errors import StartFailed
from resihp_agent.frames import acknowledge_start
from resihp_agent.job import LocalJob
from resihp_agent.link import WorkerLink
from resihp_agent.settings import AgentSettings
from resihp_agent.silence import Silence, scheduling
from resihp_agent.worker import Leaving, Worker, free_device
from resihp_agent.zygote import Zygote, child_ends, page_memory
from resihp_messages import JobSpec, event, link
from resihp_messages.page import PAGE_BYTES, PageState

log = structlog.get_logger(__name__)

OnFrame = Callable[[LocalJob, Worker, link.UpFrame], None]


class Supervisor:
    """Owner of all workers of the node. Everything that must not wait (aborts, fences) is a plain method."""

    def __init__(
        self, settings: AgentSettings, announcer: Announcer, *, clock: Callable[[], float], on_frame: OnFrame
    ) -> None:
        self._settings = settings
        self._announcer = announcer
        self._clock = clock
        self._on_frame = on_frame
        self._zygote: Zygote | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watched_since_s: float | None = None
        self._last_watch_s: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.jobs: dict[str, LocalJob] = {}
        self.num_fenced = 0

    def attach(self, zygote: Zygote) -> None:
        """Use this zygote for starts."""
        self._zygote = zygote

    def workers(self) -> Iterator[Worker]:
        """Every running worker, by job and rank."""
        for name in sorted(self.jobs):
            yield from (self.jobs[name].workers[rank] for rank in sorted(self.jobs[name].workers))

    @property
    def num_workers(self) -> int:
        return sum(len(job.workers) for job in self.jobs.values())

    def job(self, name: str) -> LocalJob:
        """The job's record, made on first use."""
        if name not in self.jobs:
            self.jobs[name] = LocalJob(name, ReportColumns(self._settings.node))
        return self.jobs[name]

    # --- start ----------------------------------------------------------------------------------------------------

    async def start(self, spec: JobSpec, rank: int, start: int = 0) -> Worker:
        """Fork a worker and configure it. `start`: how many the rank had before it. Raises `StartFailed`."""
        if self._zygote is None:
            raise StartFailed("this agent launches no workers: it only watches attached jobs")
        ours, theirs = child_ends()
        page_fd = page_memory(PAGE_BYTES)
        log_fd = os.open(self._log_path(spec.name, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            memory = mmap.mmap(page_fd, PAGE_BYTES)
            started_s = self._clock()
            pid = await self._zygote.spawn(job=spec.name, rank=rank, descriptors=(theirs.fileno(), page_fd, log_fd))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(page_fd)
            os.close(log_fd)
        return self._adopt(
            Worker(
                job=spec.name,
                rank=rank,
                start=start,
                pid=pid,
                spec=spec,
                memory=memory,
                started_s=started_s,
                silence=Silence(started_s),
                last_sign_s=started_s,
                observed_s=started_s,
                device_index=free_device(w for job in self.jobs.values() for w in job.workers.values()),
            ),
            ours,
        )

    def _adopt(self, worker: Worker, sock: socket.socket) -> Worker:
        job = self.job(worker.job)
        job.workers[worker.rank] = worker
        self._idle.clear()
        worker.link = WorkerLink(
            sock,
            on_frame=lambda frame: self._on_frame(job, worker, frame),
            on_closed=lambda reason: self._link_closed(worker, reason),
        )
        worker.pidfd = process.open_pidfd(worker.pid)
        loop = asyncio.get_running_loop()
        if worker.pidfd is None:
            loop.call_soon(self._exited, worker)
        else:
            loop.add_reader(worker.pidfd, self._exited, worker)
        worker.link.send(
            link.Configure(
                job=worker.job,
                rank=worker.rank,
                node=self._settings.node,
                comm_host=self._settings.comm_host,
                spec=worker.spec,
                start=worker.start,
                device_index=worker.device_index,
            )
        )
        log.info("worker_started", job=worker.job, rank=worker.rank, pid=worker.pid)
        return worker

    def _log_path(self, job: str, rank: int) -> Path:
        folder = self._settings.work_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{job}-r{rank}.log"

    # --- exits ----------------------------------------------------------------------------------------------------

    def _link_closed(self, worker: Worker, reason: str) -> None:
        worker.link_closed_s = self._clock()
        log.info("link_closed", job=worker.job, rank=worker.rank, reason=reason)

    def _exited(self, worker: Worker) -> None:
        """The process is gone. Peers are told in this very callback, before anything that could wait."""
        if worker.gone:
            return
        noticed_s = self._clock() if worker.fence_noticed_s is None else worker.fence_noticed_s
        worker.gone = True
        worker.observe(noticed_s)
        if worker.pidfd is not None:
            asyncio.get_running_loop().remove_reader(worker.pidfd)
        if worker.link is not None:
            worker.link.drain()  # its last words may say that this exit is in order
        job = self.job(worker.job)
        job.workers.pop(worker.rank, None)
        if not self.num_workers:
            self._idle.set()
        if worker.leaving in (None, Leaving.FAILED):
            job.abort({worker.rank: worker.start}, noticed_s=noticed_s, reason=f"worker {worker.rank} exited")
            if worker.rank in job.starting:
                job.starting -= {worker.rank}  # the others of its start need not wait for it
                acknowledge_start(job, self._announcer, self._settings.node)
        process.kill_group(worker.pid)  # helpers of the worker, e.g. data loaders, must not outlive it
        worker.release()
        self._track(self._after_exit(worker, noticed_s))

    async def _after_exit(self, worker: Worker, noticed_s: float) -> None:
        assert self._zygote is not None
        code = await self._zygote.exit_code(worker.pid, timeout_s=self._settings.exit_code_wait_s)
        log.info("worker_exited", job=worker.job, rank=worker.rank, pid=worker.pid, code=code, why=worker.leaving)
        if worker.leaving is None:
            progress = worker.progress()
            body = event.WorkerExited(
                node=self._settings.node,
                rank=worker.rank,
                pid=worker.pid,
                exit_code=code,
                iteration=progress.iteration,
                detect_s=worker.detect_s(noticed_s),
                fenced=worker.fence_noticed_s is not None,
                start=worker.start,
            )
            self._announcer.say(body, job=worker.job, epoch=progress.epoch)
        await self._verify_gone(worker)

    async def _verify_gone(self, worker: Worker) -> None:
        """Kill what is left of the process group until nothing is."""
        for _ in range(100):
            if not process.kill_group(worker.pid) or not process.group_members(worker.pid):
                return
            await asyncio.sleep(0.05)
        log.error("group_not_gone", job=worker.job, rank=worker.rank, pids=process.group_members(worker.pid))

    # --- stalls and fences ----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Look at every worker once: fence the frozen, hurry those that should have left."""
        now_s = self._clock()
        self._note_own_pause(now_s)
        for worker in list(self.workers()):
            if worker.fence_noticed_s is not None:
                if now_s - worker.fenced_s > self._settings.fence_wait_s:
                    self._give_up_waiting(worker)
            elif worker.leaving is not None:
                if now_s - worker.leaving_since_s > self._settings.leave_timeout_s:
                    log.warning("worker_does_not_leave", job=worker.job, rank=worker.rank, why=worker.leaving)
                    worker.leaving_since_s = now_s
                    process.kill_group(worker.pid)
            elif worker.link_closed_s is not None:
                if now_s - worker.link_closed_s > self._settings.exit_grace_s:
                    self.fence(worker, "it closed its link but did not exit")
            else:
                self._fence_if_stalled(worker, now_s)

    def fence(self, worker: Worker, reason: str) -> None:
        """SIGKILL to the process group. The exit then takes its normal path, marked as fenced."""
        if worker.fence_noticed_s is not None or worker.gone:
            return
        worker.fence_noticed_s = worker.fenced_s = self._clock()
        self.num_fenced += 1
        log.warning("worker_fenced", job=worker.job, rank=worker.rank, pid=worker.pid, reason=reason)
        process.kill_group(worker.pid)

    def _fence_if_stalled(self, worker: Worker, now_s: float) -> None:
        progress, stall_s = worker.progress(), worker.spec.timeouts.stall_s
        worker.observe(now_s)
        worker.silence.look(worker.last_sign_s, scheduling(worker.pid))
        silent_s = min(worker.silent_s(now_s), now_s - (self._watched_since_s or now_s))
        if silent_s <= stall_s:
            return
        letter = process.state_letter(worker.pid)
        if letter in {"", "Z", "X"}:  # exiting: the pidfd will tell
            return
        stalled_s = worker.silence.stalled_s(silent_s, letter, stall_s)
        if stalled_s is None:
            return
        young = progress.state is PageState.STARTING or worker.committed == 0
        if young and not process.is_stopped(letter) and silent_s <= self._settings.start_timeout_s:
            return  # imports, first touches of memory, first compilation: slow is not frozen
        body = event.WorkerStalled(
            node=self._settings.node,
            rank=worker.rank,
            pid=worker.pid,
            iteration=progress.iteration,
            stalled_s=stalled_s,
            process_state=letter,
        )
        self._announcer.say(body, job=worker.job, epoch=progress.epoch)
        self.fence(worker, f"no sign of life for {stalled_s:.2f} s, process state {letter}")

    def _note_own_pause(self, now_s: float) -> None:
        """If this process was held up itself (host suspended, container frozen), the workers probably were too: their
        silence counts from now on only."""
        last_s, self._last_watch_s = self._last_watch_s, now_s
        if last_s is None or now_s - last_s > self._settings.own_pause_s:
            self._watched_since_s = now_s

    def _give_up_waiting(self, worker: Worker) -> None:
        """SIGKILL is pending but the process hangs in the kernel (state D). It will never run its own code again, so
        the others may go on without it; only its memory is not free yet."""
        log.error("fenced_worker_hangs_in_kernel", job=worker.job, rank=worker.rank, pid=worker.pid)
        self._exited(worker)

    # --- end ------------------------------------------------------------------------------------------------------

    def stop_job(self, job: LocalJob, reason: str) -> None:
        """Ask the job's workers to leave; `watch` kills those that do not."""
        job.stopping = True
        now_s = self._clock()
        for worker in job.workers.values():
            worker.leave(Leaving.STOPPED, now_s)
        job.send(link.StopNow(reason=reason))

    async def stop_all(self, reason: str, *, timeout_s: float) -> None:
        """Stop every worker, in order if it goes within `timeout_s`, else by SIGKILL."""
        for job in self.jobs.values():
            self.stop_job(job, reason)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        for worker in list(self.workers()):
            process.kill_group(worker.pid)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), 0.1 * timeout_s)
        await self.settle()

    def lose_all(self, reason: str) -> None:
        """Kill every worker as a fault: each exit is announced."""
        for worker in list(self.workers()):
            self.fence(worker, reason)

    async def settle(self) -> None:
        """Wait until every noticed exit has been announced."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _track(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("exit_handling_failed", error=repr(task.exception()))
