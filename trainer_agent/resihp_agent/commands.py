"""Commands of the scheduler: admitted by the fencing ledger, carried out, then acknowledged on the bus.

Every command is idempotent: a message delivered twice to one incarnation is recognised by its id, and what it asks for
is compared with what already is.
"""

from __future__ import annotations

import asyncio
import signal
from collections import OrderedDict
from collections.abc import Callable, Mapping

import structlog

from resihp_agent import process
from resihp_agent.announcer import Announcer
from resihp_agent.attach import AttachedJobs
from resihp_agent.errors import RefusedCommand, StartFailed
from resihp_agent.frames import acknowledge_start
from resihp_agent.job import LocalJob
from resihp_agent.ledger import FencingLedger
from resihp_agent.progress import PlanProgress
from resihp_agent.settings import AgentSettings
from resihp_agent.supervisor import Supervisor
from resihp_bus.port import Ack, Outcome, Reject, Retry
from resihp_messages import AnyEnvelope, ack, command, link
from resihp_messages.placement import paired_starts, starts_of
from resihp_plan.plan import InvalidPlan, ParallelPlan

log = structlog.get_logger(__name__)

_REMEMBERED = 4096
"""Message ids kept to recognise redelivery."""


class CommandHandler:
    """Handler of the durable consumer `agent-<node>`."""

    def __init__(
        self,
        settings: AgentSettings,
        supervisor: Supervisor,
        announcer: Announcer,
        ledger: FencingLedger,
        *,
        attached: AttachedJobs,
        incarnation: str,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._announcer = announcer
        self._ledger = ledger
        self._attached = attached
        self._incarnation = incarnation
        self._clock = clock
        self._handled: OrderedDict[str, None] = OrderedDict()
        self.num_refused = 0

    async def __call__(self, envelope: AnyEnvelope) -> Outcome:
        body = envelope.body
        if not isinstance(body, command._Command) or body.node != self._settings.node:
            return Reject(f"{envelope.schema_} is not a command for node {self._settings.node}")
        if body.agent_incarnation and body.agent_incarnation != self._incarnation:
            return Reject(f"{envelope.schema_} was meant for an earlier start of this agent ({body.agent_incarnation})")
        if envelope.message_id in self._handled:
            return Ack()
        if isinstance(body, command.StartWorkers) and self._awaits_room(envelope.job, body):
            return Retry(0.05)
        try:
            self._ledger.admit_token(body.token)
            await self._obey(envelope, body)
        except RefusedCommand as refusal:
            self._refuse(envelope, str(refusal))
        await asyncio.to_thread(self._ledger.save)
        self._remember(envelope.message_id)
        return Ack()

    async def _obey(self, envelope: AnyEnvelope, body: command._Command) -> None:
        log.info("command", schema=envelope.schema_, job=envelope.job, epoch=envelope.epoch, token=body.token)
        job = self._supervisor.jobs.get(envelope.job)
        match body:
            case command.StartWorkers():
                await self._start_workers(envelope, body)
            case command.WatchWorkers():
                self._attached.accept(envelope, body)
            case command.ApplyPlan():
                self._apply_plan(envelope, body, job)
            case command.FenceWorker() if job is not None and body.rank in job.workers:
                self._supervisor.fence(job.workers[body.rank], body.reason)
            case command.InflictFault() if job is not None and body.rank in job.workers:
                self._inflict(job, body)
            case command.ValidateDevices() if job is not None:
                job.send(link.Validate(validation_id=body.validation_id, ranks=body.ranks, links=body.links))
            case command.FinishJob() if job is not None:
                job.send(link.FinishNow())
            case command.StopJob() if job is not None:
                self._supervisor.stop_job(job, body.reason)
            case _:
                log.info("nothing_to_do", schema=envelope.schema_, job=envelope.job)

    def _inflict(self, job: LocalJob, body: command.InflictFault) -> None:
        match body.fault:
            case "slow" | "slow_link":
                job.send(link.SetSpeed(factor=body.factor, for_s=body.for_s, peer=body.peer), [body.rank])
            case "corrupt":
                job.send(link.CorruptState(), [body.rank])
            case _:
                worker = job.workers[body.rank]
                worker.page.mark_fault()
                process.send_signal(worker.pid, signal.SIGKILL if body.fault == "kill" else signal.SIGSTOP)

    def _awaits_room(self, job_name: str, body: command.StartWorkers) -> bool:
        """Whether the start needs slots whose workers are on their way out: the end of a job and the start of the next
        are decided together."""
        running = list(self._supervisor.workers())
        held = {worker.rank for worker in running if worker.job == job_name}
        missing = sum(rank not in held for rank in body.ranks)
        free = self._settings.num_slots - len(running)
        return missing > free and any(worker.leaving is not None for worker in running)

    async def _start_workers(self, envelope: AnyEnvelope, body: command.StartWorkers) -> None:
        job, starts = self._supervisor.job(envelope.job), paired_starts(body.ranks, body.starts)
        if not job.workers and not any(starts.values()):
            self._forget(job)
            job = self._supervisor.job(envelope.job)
        job.learn_starts(starts)
        missing = [rank for rank in body.ranks if rank not in job.workers]
        free = self._settings.num_slots - self._supervisor.num_workers
        if len(missing) > free:
            reason = f"node {self._settings.node} has {free} free slots, {len(missing)} workers were asked for"
            self._announcer.say(
                ack.WorkerFailed(node=self._settings.node, rank=missing[0], error=reason), job=envelope.job
            )
            return
        job.starting |= frozenset(body.ranks)
        for rank in missing:
            try:
                await self._supervisor.start(body.spec, rank, starts[rank])
            except StartFailed as error:
                self._announcer.say(
                    ack.WorkerFailed(node=self._settings.node, rank=rank, error=str(error)), job=envelope.job
                )
                return
        acknowledge_start(job, self._announcer, self._settings.node)

    def _forget(self, job: LocalJob) -> None:
        """No worker of the job runs here: what is known about its last run is void, its epochs start anew.

        Commands arrive in order and a deposed leader is held off by its token, so no plan of the last run can follow.
        """
        for timer in job.suspicions.values():
            timer.cancel()
        del self._supervisor.jobs[job.name]
        self._ledger.reset_epoch(job.name)

    def _apply_plan(self, envelope: AnyEnvelope, body: command.ApplyPlan, job: LocalJob | None) -> None:
        received_s = self._clock()
        try:
            plan = ParallelPlan.from_dict(body.plan)
        except InvalidPlan as error:
            raise RefusedCommand(str(error)) from error
        if plan.digest != body.digest or plan.epoch != envelope.epoch:
            raise RefusedCommand(f"plan {plan.digest[:12]} of epoch {plan.epoch} is not the announced one")
        self._ledger.admit_epoch(envelope.job, envelope.epoch)
        starts = starts_of(body.placement)
        dead = {rank: starts.get(rank, 0) for rank in body.dead_ranks}
        self._fence_declared_dead(job, dead)
        local = tuple(rank for rank in plan.world if job is not None and rank in job.workers)
        if job is None or not local:
            log.info("no_local_rank", job=envelope.job, epoch=plan.epoch)
            return
        job.learn_starts(starts)
        members = {rank: starts.get(rank, 0) for rank in plan.world}
        unaware = job.outdated_ranks(members)
        if unaware:  # the scheduler will hear of these deaths and send a newer plan
            log.warning("plan_outdated", job=job.name, epoch=plan.epoch, dead=unaware)
            return
        if body.mode == "recovery":
            self._abort_before_recovery(job, dead, received_s)
        elif body.mode == "initial":
            job.notice_s = None
        notice_s = job.notice_s if body.mode == "recovery" and job.notice_s is not None else received_s
        progress = PlanProgress(
            node=self._settings.node,
            epoch=plan.epoch,
            mode=body.mode,
            reconfiguration_id=body.reconfiguration_id,
            digest=body.digest,
            world=local,
            since_s=notice_s,
            plan_s=max(0.0, received_s - notice_s),
        )
        job.take_plan(progress, members)
        job.send(
            link.InstallPlan(
                mode=body.mode,
                epoch=plan.epoch,
                reconfiguration_id=body.reconfiguration_id,
                plan=body.plan,
                digest=body.digest,
                base_plans=body.base_plans,
                store_address=body.store_address,
                dead_ranks=body.dead_ranks,
                placement=body.placement,
                back_to=body.back_to,
            ),
            local,
        )

    def _fence_declared_dead(self, job: LocalJob | None, dead: Mapping[int, int]) -> None:
        """A process that everybody else has given up may not act any more, even if it lives."""
        for rank, start in dead.items():
            worker = job.workers.get(rank) if job is not None else None
            if worker is not None and worker.start <= start:
                self._supervisor.fence(worker, "the plan counts it among the dead")

    def _abort_before_recovery(self, job: LocalJob, dead: Mapping[int, int], now_s: float) -> None:
        """News of a fault on another node may have missed us; the workers must leave the old epoch all the same."""
        news = job.abort(dead, noticed_s=now_s, reason="the plan names dead ranks")
        if not news and job.running_epoch and not job.explains(job.running_epoch):
            job.abort_epoch(job.running_epoch, noticed_s=job.notice_s or now_s, reason="recovery without a death")

    def _refuse(self, envelope: AnyEnvelope, reason: str) -> None:
        self.num_refused += 1
        log.warning("command_refused", schema=envelope.schema_, job=envelope.job, epoch=envelope.epoch, reason=reason)
        if isinstance(envelope.body, command.ApplyPlan):
            body = ack.PlanRejected(
                node=self._settings.node, reconfiguration_id=envelope.body.reconfiguration_id, reason=reason[:4096]
            )
            self._announcer.say(body, job=envelope.job, epoch=envelope.epoch)

    def _remember(self, message_id: str) -> None:
        self._handled[message_id] = None
        while len(self._handled) > _REMEMBERED:
            self._handled.popitem(last=False)
