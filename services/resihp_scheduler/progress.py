"""What agents acknowledge: workers started, plans prepared, applied, refused, iterations resumed, workers finished."""

from __future__ import annotations

from typing import TypeVar

import structlog

from resihp_bus import Ack, Outcome
from resihp_messages import AnyEnvelope, ack
from resihp_plan import ParallelPlan
from resihp_scheduler import changes, diverged, endings, phases, replan, returns
from resihp_scheduler.aim import SLOW
from resihp_scheduler.changes import Cause
from resihp_scheduler.losses import same_layout, start_running
from resihp_scheduler.planning import Choice, JobPlanning, NoPlan, in_thread
from resihp_scheduler.situation import Situation, load
from resihp_scheduler.term import Term
from resihp_store import (
    AckRecord,
    DeviceState,
    JobState,
    PlanRecord,
    ReconfigurationRecord,
    UnitOfWork,
    queries,
)

log = structlog.get_logger(__name__)
A = TypeVar("A", ack.PlanApplied, ack.IterationResumed)


async def workers_started(term: Term, envelope: AnyEnvelope, body: ack.WorkersStarted) -> Outcome:
    """When the last node's workers are up, the first plan goes out; later ones are taken into the plan."""
    async with term.lock(envelope.job):
        async with term.transaction() as work:
            if not await work.claim(envelope.message_id):
                return Ack()
            situation = await load(work.connection, envelope.job)
            if situation is None or not situation.active:
                return Ack()
            for rank, pid in zip(body.ranks, body.pids, strict=True):
                device = situation.of_rank.get(rank)
                if device is None or (device.node, device.incarnation) != (body.node, envelope.incarnation):
                    continue
                if (state := _UP.get(device.state)) is not None:
                    await work.set_devices(envelope.job, [rank], state, pid=pid)
        await begin_if_started(term, envelope.job)
    term.wake(envelope.job)
    return Ack()


_UP = {DeviceState.STARTING: DeviceState.HEALTHY, DeviceState.RETURNING: DeviceState.STANDBY}
"""What becomes of a device whose worker says hello."""


async def begin_if_started(term: Term, job: str) -> None:
    """Issue the first plan if every device is up. Idempotent; the job's lock is held by the caller."""
    async with term.store.read() as connection:
        situation = await load(connection, job)
    if situation is None or situation.job.state is not JobState.STARTING or not situation.all_started:
        return
    choice = await _first_choice(term, situation)
    async with term.transaction() as work:
        if isinstance(choice, NoPlan):
            await endings.fail(term, work, situation, choice.reason)
            return
        cause = Cause("initial", choice.reason)
        await changes.issue(term, work, situation, choice, cause)
        await start_running(term, work, situation, choice)


async def _first_choice(term: Term, situation: Situation) -> Choice | NoPlan:
    planning = JobPlanning(situation.spec)
    if situation.lost:
        return await replan.after_loss(term, situation)
    return await in_thread(lambda: planning.first(situation.newest_epoch + 1), term.settings.plan_deadline_s)


async def plan_acknowledged(
    term: Term, envelope: AnyEnvelope, body: ack.PlanPrepared | ack.PlanApplied | ack.IterationResumed
) -> Outcome:
    """Collected per node; the last one completes the change."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        change = await queries.reconfiguration(work.connection, body.reconfiguration_id)
        if change is None or change.job != envelope.job:
            log.warning("acknowledgement of an unknown change", reconfiguration=body.reconfiguration_id)
            return Ack()
        name = type(body).schema_name.partition(".")[0]
        await work.add_ack(AckRecord(change.id, body.node, name, body.model_dump(mode="json")))
        applied = await _complete(term, work, change)
    if applied:
        await returns.welcome(term, envelope.job)
        term.wake(envelope.job)
    return Ack()


async def _complete(term: Term, work: UnitOfWork, change: ReconfigurationRecord) -> bool:
    """Whether this was the last acknowledgement that the change needed."""
    situation = await load(work.connection, change.job)
    plan = await _plan_of(work, change)
    if situation is None or plan is None:
        return False
    nodes = set(situation.nodes_of(plan.world))
    records = await queries.acks(work.connection, change.id)
    applied = _bodies(records, ack.PlanApplied)
    if not nodes <= {a.node for a in applied}:
        return False
    await work.mark_installed(change.job, change.new_epoch)  # also for a superseded change: its layout exists
    resumed = _bodies(records, ack.IterationResumed)
    if not change.open or not nodes <= {r.node for r in resumed}:
        return False
    result = phases.outcome(
        applied,
        resumed,
        world=plan.world,
        digest=change.new_digest,
        detect_s=change.phases_s.get("detect", 0.0),
        plan_s=change.phases_s.get("plan", 0.0),
    )
    await changes.apply(term, work, change, result)
    await _settle_devices(work, situation, plan)
    if change.mode == "recovery":
        for incident in await queries.incidents(work.connection, job_name=change.job, only_open=True):
            if incident.kind != SLOW:  # over when the device has recovered
                await work.close_incident(incident.id, diverged.resolution(incident, change.id, result))
    return True


async def _plan_of(work: UnitOfWork, change: ReconfigurationRecord) -> ParallelPlan | None:
    found: tuple[PlanRecord, ...] = await queries.plans(work.connection, change.job, from_epoch=change.new_epoch)
    return next((ParallelPlan.from_dict(p.plan) for p in found if p.epoch == change.new_epoch), None)


def _bodies(records: tuple[AckRecord, ...], kind: type[A]) -> list[A]:
    name = kind.schema_name.partition(".")[0]
    return [kind.model_validate(dict(r.body)) for r in records if r.name == name]


async def _settle_devices(work: UnitOfWork, situation: Situation, plan: ParallelPlan) -> None:
    """Who works and who stands by under the plan that now runs."""
    for ranks, state in ((plan.active, DeviceState.HEALTHY), (plan.standby, DeviceState.STANDBY)):
        moved = [r for r in ranks if r in situation.alive and situation.of_rank[r].state is not state]
        if moved:
            await work.set_devices(situation.name, moved, state)


async def plan_rejected(term: Term, envelope: AnyEnvelope, body: ack.PlanRejected) -> Outcome:
    """A planned change is dropped. A recovery is tried again under a newer epoch, a few times."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        change = await queries.reconfiguration(work.connection, body.reconfiguration_id)
        situation = await load(work.connection, envelope.job)
        if change is None or situation is None or situation.open is None or situation.open.id != change.id:
            return Ack()
        reason = f"node {body.node} refused: {body.reason}"
        log.warning("plan refused", job=envelope.job, epoch=change.new_epoch, reason=reason)
        if change.mode == "planned":
            await changes.reject(term, work, change, reason)
        elif change.attempt >= term.settings.max_attempts:
            text = f"the plan of epoch {change.new_epoch} was refused {change.attempt} times; {reason}"
            await endings.fail(term, work, situation, text)
        else:
            await _try_again(term, work, situation, change, reason)
    term.wake(envelope.job)
    return Ack()


async def _try_again(
    term: Term, work: UnitOfWork, situation: Situation, change: ReconfigurationRecord, reason: str
) -> None:
    cause = Cause(
        mode="recovery",
        reason=f"again after a refusal ({reason})",
        incident_id=change.incident_id,
        correlation_id=change.correlation_id,
        detect_s=change.phases_s.get("detect", 0.0),
        plan_s=change.phases_s.get("plan", 0.0),
        attempt=change.attempt + 1,
    )
    await changes.issue(term, work, situation, same_layout(situation), cause)


async def worker_finished(term: Term, envelope: AnyEnvelope, body: ack.WorkerFinished) -> Outcome:
    """The job has finished when every rank that is left has."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        situation = await load(work.connection, envelope.job)
        device = situation.of_rank.get(body.rank) if situation is not None else None
        if situation is None or not situation.active or device is None or device.state is DeviceState.LOST:
            return Ack()
        result = body.model_dump(mode="json")
        await work.set_devices(envelope.job, [body.rank], DeviceState.FINISHED, result=result)
        left = situation.alive - {body.rank}
        if not left:
            results = [d.result for d in situation.devices if d.result is not None and d.rank != body.rank]
            await endings.finish(term, work, situation, [*results, result])
        elif situation.open is not None and 0 < envelope.epoch < situation.open.new_epoch:
            # It left through the barrier of an older epoch: the newer plan can never be installed.
            await changes.reject(term, work, situation.open, "the last iteration is committed")
            await endings.finish_rest(term, work, situation, left)
        elif not left & situation.planned:  # returned ranks that no plan has taken in
            await endings.finish_rest(term, work, situation, left)
    return Ack()


async def worker_failed(term: Term, envelope: AnyEnvelope, body: ack.WorkerFailed) -> Outcome:
    """A fault of the job itself, which no other layout mends."""
    async with term.lock(envelope.job), term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        situation = await load(work.connection, envelope.job)
        if situation is None or not situation.active:
            return Ack()
        if situation.job.state is JobState.RUNNING and body.rank not in situation.planned:
            lost = [d.rank for d in situation.devices if d.node == body.node and d.state is DeviceState.RETURNING]
            log.warning("ranks cannot come back", job=envelope.job, ranks=lost, node=body.node, error=body.error)
            await work.set_devices(envelope.job, {*lost, body.rank}, DeviceState.LOST)
        else:
            await endings.fail(term, work, situation, f"rank {body.rank} failed: {body.error}")
    return Ack()
