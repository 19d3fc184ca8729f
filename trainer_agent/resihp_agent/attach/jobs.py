"""All attached jobs of this node: what their ranks say and how they end, told to the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog

from resihp_agent import process
from resihp_agent.announcer import Announcer
from resihp_agent.attach import judge, kernel
from resihp_agent.attach.job import AttachedJob, committed, spec_of
from resihp_agent.attach.quiet import Quiet
from resihp_agent.attach.rank import AttachedRank
from resihp_agent.columns import ReportColumns
from resihp_agent.settings import AgentSettings
from resihp_messages import AnyEnvelope, ack, command, event
from resihp_messages.attach import (
    AttachBeat,
    AttachBye,
    AttachFrame,
    AttachHello,
    AttachIteration,
    LauncherBye,
    LauncherHello,
)
from resihp_messages.report import WorkerBeat

log = structlog.get_logger(__name__)

_MAX_WAITING = 256
"""Iterations that wait for a rank whose line is away."""
_GATHER_S = 0.3
"""Hellos of one node's ranks are said together."""


class AttachedJobs:
    """Receiver of the listener's frames. All methods run on the event loop's thread and never wait."""

    def __init__(self, settings: AgentSettings, announcer: Announcer, *, clock: Callable[[], float]) -> None:
        self._settings, self._announcer, self._clock = settings, announcer, clock
        self._jobs: dict[str, AttachedJob] = {}
        self._by_pid: dict[int, tuple[AttachedJob, AttachedRank]] = {}
        self._launchers: dict[int, str] = {}
        self._quiet = Quiet(settings, announcer)
        self._watched_since_s = self._last_watch_s = clock()
        self.num_early = 0
        """Iterations that ended before the scheduler knew the job."""

    @property
    def num_ranks(self) -> int:
        return len(self._by_pid)

    @property
    def num_dropped(self) -> int:
        """Frames that the living ranks' clients could not send in time."""
        return sum(rank.beat.dropped for _, rank in self._by_pid.values() if rank.beat is not None)

    def beats(self, now_s: float) -> Iterator[WorkerBeat]:
        """Every living rank, by job and rank."""
        for name, job in sorted(self._jobs.items()):
            yield from (job.ranks[rank].worker_beat(name, job.epoch, now_s) for rank in sorted(job.ranks))

    # --- frames ---------------------------------------------------------------------------------------------------

    def frame(self, pid: int, frame: AttachFrame) -> None:
        if isinstance(frame, AttachHello):
            self._hello(pid, frame)
        elif isinstance(frame, LauncherHello):
            self._launchers[pid] = frame.job
            self._job(frame.job).launcher = True
        elif isinstance(frame, LauncherBye):
            self._launcher_gone(self._launchers.pop(pid, ""))
        elif pid in self._by_pid:
            self._said(*self._by_pid[pid], frame)

    def closed(self, pid: int) -> None:
        """A rank may come again; its exit is told by the kernel. A launcher that is gone starts nobody any more."""
        self._launcher_gone(self._launchers.pop(pid, ""))

    def _hello(self, pid: int, hello: AttachHello) -> None:
        now_s = self._clock()
        if pid in self._by_pid:  # the line was interrupted
            self._by_pid[pid][1].last_sign_s = now_s
            return
        job = self._job(hello.job)
        if hello.start > job.start:
            job = self._begin_anew(job, hello.start)
        known = job.ranks.get(hello.rank)
        if known is not None and process.state_letter(known.pid) not in {"", "Z", "X"}:
            log.warning("rank_attached_twice", job=job.name, rank=hello.rank, pid=pid, known=known.pid)
            return
        if known is not None:
            self._forget(known)
        rank = AttachedRank(hello, pid, process.open_pidfd(pid), now_s)
        if rank.pidfd is None:
            return  # gone already
        job.ranks[rank.rank], job.ends_at_s = rank, None
        self._by_pid[pid] = (job, rank)
        loop = asyncio.get_running_loop()
        loop.add_reader(rank.pidfd, self._exited, job, rank)
        log.info("rank_attached", job=job.name, rank=rank.rank, pid=pid, start=job.start)
        if len(job.ranks) == hello.local_world_size:
            self._announce(job)
        else:
            loop.call_later(_GATHER_S, self._announce, job)

    def _job(self, name: str) -> AttachedJob:
        if name not in self._jobs:
            self._jobs[name] = AttachedJob(name, ReportColumns(self._settings.node))
        return self._jobs[name]

    def _begin_anew(self, job: AttachedJob, start: int) -> AttachedJob:
        """The launcher has started the job again: what is known of its last start is void."""
        self._settle_exits(job)
        for rank in job.ranks.values():
            self._forget(rank)
        job.ranks.clear()
        new = AttachedJob(job.name, ReportColumns(self._settings.node), start, launcher=job.launcher)
        self._jobs[job.name] = new
        return new

    def _announce(self, job: AttachedJob) -> None:
        new = sorted(job.ranks.keys() - job.announced)
        if not new:
            return
        job.announced.update(new)
        body = event.WorkersAttached(
            node=self._settings.node,
            ranks=tuple(new),
            pids=tuple(job.ranks[rank].pid for rank in new),
            start=job.start,
            spec=spec_of(job.ranks[new[0]].hello).model_dump(mode="json"),
        )
        self._announcer.say(body, job=job.name, epoch=job.start + 1)

    def accept(self, envelope: AnyEnvelope, body: command.WatchWorkers) -> None:
        """The scheduler knows this start of the job: reports may go out."""
        job = self._jobs.get(envelope.job)
        if job is not None and envelope.epoch == job.start + 1:
            job.epoch, job.reconfiguration_id = envelope.epoch, body.reconfiguration_id

    def _said(self, job: AttachedJob, rank: AttachedRank, frame: AttachBeat | AttachIteration | AttachBye) -> None:
        now_s = self._clock()
        if isinstance(frame, AttachBeat):
            rank.heard(frame, now_s)
            self._quiet.resumed(job, rank, now_s)
        elif isinstance(frame, AttachIteration):
            rank.last_sign_s = now_s
            self._iteration(job, rank, frame)
        else:
            rank.bye = frame

    def _iteration(self, job: AttachedJob, rank: AttachedRank, frame: AttachIteration) -> None:
        rank.committed, rank.loss = frame.iteration, frame.loss
        rank.peak_rss_bytes = max(rank.peak_rss_bytes, frame.rss_bytes)
        job.has_hung = False
        if not job.epoch:
            self.num_early += 1
            return
        job.waiting.setdefault(frame.iteration, {})[rank.rank] = committed(job.epoch, frame)
        self._report(job, rank, _MAX_WAITING)

    def _report(self, job: AttachedJob, rank: AttachedRank, most: int) -> None:
        """Send what is complete. `rank`: any of the job's."""
        for rows in job.complete(most):
            for number in sorted(rows):
                for epoch, report in job.columns.add(number, rows[number], tuple(rows), job.reconfiguration_id):
                    # Nobody counts the global batch: what the ranks here did, for all ranks.
                    tokens = sum(report.tokens) * rank.hello.world_size // len(report.ranks)
                    copies = rank.hello.axes.get("pp", 1) * rank.hello.axes.get("tp", 1)
                    whole = report.model_copy(update={"global_tokens": tokens // copies})
                    self._announcer.report(whole, job=job.name, epoch=epoch)

    # --- exits ----------------------------------------------------------------------------------------------------

    def _exited(self, job: AttachedJob, rank: AttachedRank) -> None:
        """The process is gone. What it said last may still be on its way."""
        now_s, code = self._clock(), kernel.exit_code(rank.pid)
        assert rank.pidfd is not None
        asyncio.get_running_loop().remove_reader(rank.pidfd)
        asyncio.get_running_loop().call_later(0.05, self._gone, job, rank, code, now_s)

    def _gone(self, job: AttachedJob, rank: AttachedRank, code: int | None, noticed_s: float) -> None:
        if job.ranks.get(rank.rank) is not rank:
            return
        self._forget(rank)
        del job.ranks[rank.rank]
        if rank.bye is not None and not rank.bye.error and not code:
            self._finished(job, rank)
        else:
            error = rank.bye.error if rank.bye is not None else ""
            detect_s = max(0.0, noticed_s - rank.last_sign_s)
            gone = judge.Exit(rank.rank, rank.pid, code, error, rank.committed, noticed_s, detect_s)
            log.info("rank_exited", job=job.name, rank=rank.rank, pid=rank.pid, code=code, error=error)
            if not job.exits and job.explained_s is None:
                asyncio.get_running_loop().call_later(self._settings.collateral_s, self._settle_exits, job)
            job.exits.append(gone)
        if not job.ranks:
            self._ends_soon(job)

    def _forget(self, rank: AttachedRank) -> None:
        self._by_pid.pop(rank.pid, None)
        if rank.pidfd is not None:
            asyncio.get_running_loop().remove_reader(rank.pidfd)
        rank.release()

    def _finished(self, job: AttachedJob, rank: AttachedRank) -> None:
        log.info("rank_finished", job=job.name, rank=rank.rank, iteration=rank.committed)
        job.outlived = job.outlived or job.explained_s is not None
        self._report(job, rank, 0 if not job.ranks else _MAX_WAITING)
        body = ack.WorkerFinished(
            node=self._settings.node,
            rank=rank.rank,
            committed=rank.committed,
            samples_expected=0,
            samples_once=0,
            final_loss=rank.loss,
            peak_rss_bytes=rank.peak_rss_bytes,
        )
        self._announcer.say(body, job=job.name, epoch=job.epoch)

    def _settle_exits(self, job: AttachedJob) -> None:
        """Say which of the exits are faults; the others followed from them."""
        exits, job.exits = job.exits, []
        if not exits or job.explained_s is not None:
            return
        guilty = judge.culprits(exits)
        log.info("exits_settled", job=job.name, faults=[e.rank for e in guilty], exits=[e.rank for e in exits])
        job.lost.update({e.rank: e for e in guilty})
        if guilty:
            job.explained_s = self._clock()
        else:
            job.stopped = exits[0].text
        for gone in guilty:
            body = event.WorkerExited(
                node=self._settings.node,
                rank=gone.rank,
                pid=gone.pid,
                exit_code=gone.code,
                iteration=gone.iteration,
                detect_s=gone.detect_s,
                start=job.start,
                error=gone.error,
            )
            self._announcer.say(body, job=job.name, epoch=job.epoch)

    async def on_event(self, envelope: AnyEnvelope) -> None:
        """A death on another node explains the exits here that follow it."""
        body, job = envelope.body, self._jobs.get(envelope.job)
        if isinstance(body, event.WorkerExited) and job is not None and body.node != self._settings.node:
            guilty = [e for e in job.exits if e.guilt is judge.Guilt.DIED]
            if not guilty and body.start == job.start:
                job.explained_s, job.exits = self._clock(), []

    # --- the end --------------------------------------------------------------------------------------------------

    def _ends_soon(self, job: AttachedJob) -> None:
        """Nobody is left here; a launcher may start everybody again."""
        patience_s = self._settings.restart_wait_s if not job.launcher else float("inf")
        job.ends_at_s = self._clock() + patience_s

    def _launcher_gone(self, name: str) -> None:
        job = self._jobs.get(name)
        if job is None or not job.launcher:
            return
        job.launcher = False
        if not job.announced:  # its command never trained
            del self._jobs[name]
        elif job.ends_at_s is not None:
            job.ends_at_s = self._clock() + self._settings.collateral_s

    def _end(self, job: AttachedJob) -> None:
        """If the job has not finished here, it has failed."""
        self._settle_exits(job)
        del self._jobs[job.name]
        first = min(job.lost.values(), key=lambda e: e.noticed_s, default=None)
        if job.outlived:
            return
        if first is not None:
            rank, reason = first.rank, first.text
        elif job.explained_s is not None or job.stopped:
            rank, reason = min(job.announced), job.stopped or "the launcher ended the job after a fault on another node"
        else:
            return  # every rank here has finished
        body = ack.WorkerFailed(node=self._settings.node, rank=rank, error=reason[:4096])
        self._announcer.say(body, job=job.name, epoch=job.epoch)

    def watch(self) -> None:
        """Look at every rank once."""
        now_s = self._clock()
        if now_s - self._last_watch_s > self._settings.own_pause_s:  # we were held up: everybody's silence begins anew
            self._watched_since_s = now_s
        self._last_watch_s = now_s
        for job in list(self._jobs.values()):
            self._quiet.look(job, now_s, self._watched_since_s)
            if job.ends_at_s is not None and now_s >= job.ends_at_s:
                self._end(job)
