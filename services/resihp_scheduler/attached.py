"""Jobs that somebody else launched: known, recorded and advised, never started, stopped or changed.

Their plan only says who is whose peer; no agent installs it. Faults become incidents with advice; what happens is up to
the launcher, and ends the job here when its ranks are gone for good.
"""

from __future__ import annotations

import hashlib

import structlog

from resihp_bus import Ack, Outcome
from resihp_messages import AnyEnvelope, JobSpec, command, event
from resihp_plan import ParallelPlan, ReplicaPlan, StagePlan
from resihp_scheduler import changes
from resihp_scheduler.incidents import incident_of
from resihp_scheduler.situation import load
from resihp_scheduler.term import Term
from resihp_store import (
    DeviceRecord,
    DeviceState,
    JobRecord,
    JobState,
    PlanRecord,
    UnitOfWork,
    queries,
)

log = structlog.get_logger(__name__)

LOST = ("worker_lost", "worker_frozen", "node_lost", "job_hung")
"""Kinds of incidents that are over when the ranks report again."""


async def workers_attached(term: Term, envelope: AnyEnvelope, body: event.WorkersAttached) -> Outcome:
    """Ranks on one node; the first that are heard of make the job known."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        await work.record_event(envelope)
        spec = JobSpec.model_validate(body.spec)
        job = await _known_job(term, work, envelope.job, spec, envelope.message_id)
        if job is None:
            return Ack()
        plan = await _plan_of_start(term, work, job, spec, body.start + 1)
        await _take_in(work, envelope, body)
        watch = command.WatchWorkers(
            node=body.node,
            token=term.token,
            agent_incarnation=envelope.incarnation,
            spec=spec,
            reconfiguration_id=reconfiguration_id(job, plan.epoch),
            plan=plan.to_dict(),
            digest=plan.digest,
        )
        await work.send(term.envelope(watch, job=job.job, epoch=plan.epoch), detail=body.node)
    return Ack()


async def _known_job(term: Term, work: UnitOfWork, name: str, spec: JobSpec, correlation_id: str) -> JobRecord | None:
    """None if the name belongs to another job."""
    job = await queries.job(work.connection, name)
    if job is None:
        document = spec.model_dump(mode="json")
        await work.add_job(name, document)
        await work.set_job(name, JobState.RUNNING)
        submitted = event.JobSubmitted(spec=document)
        await changes.publish(term, work, submitted, job=name, correlation_id=correlation_id)
        return await queries.job(work.connection, name)
    if JobSpec.model_validate(job.spec).attached is None or job.state is not JobState.RUNNING:
        log.warning("attached job refused: the name is taken", job=name, state=str(job.state))
        return None
    return job


async def _plan_of_start(term: Term, work: UnitOfWork, job: JobRecord, spec: JobSpec, epoch: int) -> ParallelPlan:
    known = {p.epoch: p for p in await queries.plans(work.connection, job.job)}
    if epoch in known:
        return ParallelPlan.from_dict(known[epoch].plan)
    plan = peers(spec, epoch)
    await work.add_plan(PlanRecord(job.job, epoch, plan.digest, plan.to_dict(), None, work.now, None))
    await work.mark_installed(job.job, epoch)
    started = event.JobStarted(plan_digest=plan.digest, ranks=plan.world)
    await changes.publish(term, work, started, job=job.job, epoch=epoch)
    return plan


def peers(spec: JobSpec, epoch: int) -> ParallelPlan:
    """Who is whose peer: ranks counted through the axes in the job's order, the slowest-varying one first."""
    assert spec.attached is not None
    sizes = {"pp": spec.parallel.pp, "dp": spec.parallel.dp, "tp": spec.parallel.tp}
    stride: dict[str, int] = {}
    step = 1
    for axis in reversed(spec.attached.order):
        stride[axis], step = step, step * sizes[axis]

    def stage(d: int, p: int) -> StagePlan:
        first = d * stride["dp"] + p * stride["pp"]
        ranks = tuple(first + t * stride["tp"] for t in range(sizes["tp"]))
        return StagePlan(p, p + 1, ranks, (1,) * sizes["tp"])

    replicas = (ReplicaPlan(tuple(stage(d, p) for p in range(sizes["pp"])), 1) for d in range(sizes["dp"]))
    return ParallelPlan(epoch=epoch, replicas=tuple(replicas))


def reconfiguration_id(job: JobRecord, epoch: int) -> str:
    """Tells the starts of this job, and of jobs of the same name in other databases, apart."""
    return hashlib.sha256(f"{job.job}/{epoch}/{job.submitted_at.isoformat()}".encode()).hexdigest()[:32]


async def _take_in(work: UnitOfWork, envelope: AnyEnvelope, body: event.WorkersAttached) -> None:
    """Devices for new ranks; known ones live again."""
    known = {d.rank: d for d in await queries.devices(work.connection, envelope.job)}
    num_here = sum(d.node == body.node for d in known.values())
    for rank, pid in zip(body.ranks, body.pids, strict=True):
        if rank in known:
            values = {"node": body.node, "incarnation": envelope.incarnation, "pid": pid, "start": body.start}
            await work.set_devices(envelope.job, [rank], DeviceState.HEALTHY, **values)
            continue
        device = DeviceRecord(
            envelope.job, rank, body.node, num_here, envelope.incarnation, DeviceState.HEALTHY, pid, None, work.now,
            body.start,
        )  # fmt: skip
        await work.add_devices([device])
        num_here += 1
    await _close(work, envelope.job, set(body.ranks), "the rank reports again")


async def _close(work: UnitOfWork, job: str, ranks: set[int], why: str) -> None:
    for incident in await queries.incidents(work.connection, job_name=job, only_open=True):
        if incident.kind in LOST and set(incident.ranks) <= ranks:
            await work.close_incident(incident.id, why)


async def worker_resumed(term: Term, envelope: AnyEnvelope, body: event.WorkerResumed) -> Outcome:
    """A frozen rank that nobody killed goes on."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        await work.record_event(envelope)
        situation = await load(work.connection, envelope.job)
        device = situation.of_rank.get(body.rank) if situation is not None else None
        if device is not None and device.pid == body.pid and device.state is DeviceState.LOST:
            await work.set_devices(envelope.job, [body.rank], DeviceState.HEALTHY)
        await _close(work, envelope.job, {body.rank}, f"it goes on after {body.silent_s:.1f} s")
    return Ack()


async def job_hung(term: Term, envelope: AnyEnvelope, body: event.JobHung) -> Outcome:
    """An incident; nobody is excluded, since everybody lives."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        await work.record_event(envelope)
        situation = await load(work.connection, envelope.job)
        if situation is not None and situation.active:
            await work.add_incident(incident_of(work, envelope, body))
            log.warning("job hangs", job=envelope.job, ranks=body.verdict.ranks)
    return Ack()
