"""What workers say, turned into acknowledgements, reports and suspicions. Methods never wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from resihp_agent.announcer import Announcer
from resihp_agent.job import LocalJob
from resihp_agent.worker import Leaving, Worker
from resihp_messages import ack, event, link

log = structlog.get_logger(__name__)


class FrameHandler:
    """Called with every frame of every worker, in the order in which each worker sent them."""

    def __init__(self, announcer: Announcer, *, node: str, clock: Callable[[], float], link_grace_s: float) -> None:
        self._announcer = announcer
        self._node = node
        self._clock = clock
        self._link_grace_s = link_grace_s

    def __call__(self, job: LocalJob, worker: Worker, frame: link.UpFrame) -> None:
        match frame:
            case link.Hello():
                self._hello(job, worker)
            case link.PlanHeld():
                plan = job.plans.get(frame.epoch)
                self._say(job, frame.epoch, plan.held(worker.rank, frame) if plan else None)
            case link.PlanRefused():
                plan = job.plans.get(frame.epoch)
                log.warning("plan_refused", job=job.name, rank=worker.rank, epoch=frame.epoch, reason=frame.reason)
                self._say(job, frame.epoch, plan.refused(worker.rank, frame) if plan else None)
            case link.PlanInstalled():
                plan = job.plans.get(frame.epoch)
                self._say(job, frame.epoch, plan.installed(worker.rank, frame) if plan else None)
            case link.IterationCommitted():
                self._committed(job, worker, frame)
            case link.Validated():
                self._say(job, job.running_epoch, self._validated(worker, frame))
            case link.Evaluated():
                self._say(job, frame.epoch, self._evaluated(worker, frame))
            case link.CheckpointFailed():
                self._checkpoint_failed(job, worker, frame)
            case link.EpochAborted():
                log.info("epoch_aborted", job=job.name, rank=worker.rank, epoch=frame.epoch, abort_s=frame.abort_s)
            case link.CommunicationFailed():
                self._communication_failed(job, worker, frame)
            case link.Finished():
                self._finished(job, worker, frame)
            case link.Failed():
                worker.leave(Leaving.FAILED, self._clock())
                log.error("worker_failed", job=job.name, rank=worker.rank, error=frame.error)
                self._say(job, 0, ack.WorkerFailed(node=self._node, rank=worker.rank, error=frame.error))

    def _hello(self, job: LocalJob, worker: Worker) -> None:
        worker.greeted = True
        acknowledge_start(job, self._announcer, self._node)

    def _committed(self, job: LocalJob, worker: Worker, frame: link.IterationCommitted) -> None:
        worker.committed = frame.iteration
        plan = job.plans.get(frame.epoch)
        if plan is None:
            return
        awaited = tuple(rank for rank in plan.world if rank not in plan.lost)
        for epoch, report in job.columns.add(worker.rank, frame, awaited, plan.reconfiguration_id):
            self._announcer.report(report, job=job.name, epoch=epoch)
        if frame.first_of_epoch:
            resumed = plan.resumed(worker.rank, frame, self._clock())
            if resumed is not None and plan.mode != "planned":
                job.notice_s = None  # repaired: the next fault starts its own clock
            self._say(job, frame.epoch, resumed)

    def _validated(self, worker: Worker, frame: link.Validated) -> ack.ValidationResult:
        return ack.ValidationResult(
            node=self._node,
            validation_id=frame.validation_id,
            rank=worker.rank,
            asked=frame.asked,
            compute_s=frame.compute_s,
            link_s=frame.link_s,
            iteration=frame.iteration,
            virtual_clock=worker.spec.clock.virtual,
        )

    def _evaluated(self, worker: Worker, frame: link.Evaluated) -> event.EvaluationFinished:
        return event.EvaluationFinished(
            node=self._node,
            rank=worker.rank,
            iteration=frame.iteration,
            loss=frame.loss,
            tokens=frame.tokens,
            seconds=frame.seconds,
        )

    def _checkpoint_failed(self, job: LocalJob, worker: Worker, frame: link.CheckpointFailed) -> None:
        """A full disk fails every rank that writes: one of them is enough to say so."""
        log.warning("checkpoint_failed", job=job.name, rank=worker.rank, iteration=frame.iteration, error=frame.error)
        if frame.iteration in job.failed_checkpoints:
            return
        job.failed_checkpoints.add(frame.iteration)
        body = event.CheckpointFailed(
            node=self._node, rank=worker.rank, iteration=frame.iteration, path=frame.path, error=frame.error
        )
        self._say(job, job.running_epoch, body)

    def _finished(self, job: LocalJob, worker: Worker, frame: link.Finished) -> None:
        worker.leave(Leaving.FINISHED, self._clock())
        if all(other.leaving is Leaving.FINISHED for other in job.workers.values()):
            for epoch, report in job.columns.flush():
                self._announcer.report(report, job=job.name, epoch=epoch)
        body = ack.WorkerFinished(
            node=self._node,
            rank=worker.rank,
            committed=frame.committed,
            samples_expected=frame.samples_expected,
            samples_once=frame.samples_once,
            final_loss=frame.final_loss,
            peak_rss_bytes=frame.peak_rss_bytes,
            shards_file=frame.shards_file,
        )
        self._say(job, job.running_epoch, body)

    def _communication_failed(self, job: LocalJob, worker: Worker, frame: link.CommunicationFailed) -> None:
        """A dying peer breaks connections before anybody hears of its death: wait a little for that explanation."""
        log.info("communication_failed", job=job.name, rank=worker.rank, epoch=frame.epoch, error=frame.error)
        if frame.epoch in job.suspicions or job.explains(frame.epoch):
            return
        job.suspicions[frame.epoch] = asyncio.get_running_loop().call_later(
            self._link_grace_s, self._suspect_link, job, worker.rank, frame, self._clock()
        )

    def _suspect_link(self, job: LocalJob, rank: int, frame: link.CommunicationFailed, noticed_s: float) -> None:
        if job.stopping or job.explains(frame.epoch) or job.newest_epoch > frame.epoch:
            return
        if job.notice_s is None:
            job.notice_s = noticed_s
        body = event.LinkBroken(
            node=self._node, rank=rank, group=frame.group, error=frame.error, iteration=frame.iteration
        )
        self._say(job, frame.epoch, body)

    def _say(self, job: LocalJob, epoch: int, body: ack._Ack | event._Event | None) -> None:
        if body is not None:
            self._announcer.say(body, job=job.name, epoch=epoch)


def acknowledge_start(job: LocalJob, announcer: Announcer, node: str) -> None:
    """Say `WorkersStarted` when every rank that was asked for, and has not died since, has said hello."""
    ranks = tuple(sorted(job.starting))
    started = [job.workers[rank] for rank in ranks if rank in job.workers and job.workers[rank].greeted]
    if not ranks or len(started) < len(ranks):
        return
    job.starting = frozenset()
    announcer.say(
        ack.WorkersStarted(node=node, ranks=ranks, pids=tuple(worker.pid for worker in started)), job=job.name
    )
