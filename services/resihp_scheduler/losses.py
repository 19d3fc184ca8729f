"""From a verdict to a new plan, in one transaction: incident, device state, plan, reconfiguration, event, commands."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from resihp_bus import Ack, Outcome
from resihp_messages import FLEET, AnyEnvelope, event, new_id
from resihp_scheduler import changes, endings, replan, returns, slowness
from resihp_scheduler.changes import Cause
from resihp_scheduler.planning import Choice, NoPlan
from resihp_scheduler.situation import Situation, load, ranks_text
from resihp_scheduler.term import Term
from resihp_store import DeviceState, IncidentRecord, JobState, NodeState, UnitOfWork, queries

log = structlog.get_logger(__name__)

Failure = event.WorkerLost | event.WorkerFrozen | event.NodeLost | event.LinkLost | event.StateDiverged


@dataclass(frozen=True)
class Fault:
    """A fault of one job, from whatever told us."""

    job: str
    kind: str
    ranks: frozenset[int]
    node: str
    evidence: Mapping[str, Any]
    verdict: Mapping[str, Any]
    advice: str
    message_id: str
    """Claimed in the transaction that handles the fault."""
    correlation_id: str

    @property
    def detect_s(self) -> float:
        value = self.evidence.get("detect_s")
        return float(value) if isinstance(value, int | float) and value >= 0 else 0.0

    @property
    def text(self) -> str:
        return f"{self.kind.replace('_', ' ')}: {ranks_text(self.ranks)}" if self.ranks else self.kind.replace("_", " ")

    def incident(self, work: UnitOfWork) -> IncidentRecord:
        return IncidentRecord(
            id=new_id(),
            job=self.job,
            kind=self.kind,
            ranks=tuple(sorted(self.ranks)),
            node=self.node,
            evidence=dict(self.evidence),
            verdict=dict(self.verdict),
            advice=self.advice,
            resolution="",
            correlation_id=self.correlation_id,
            message_id=self.message_id,
            opened_at=work.now,
            closed_at=None,
        )


def fault_of(envelope: AnyEnvelope, body: Failure, job: str, message_id: str) -> Fault:
    return Fault(
        job=job,
        kind=body.verdict.fault,
        ranks=frozenset(body.verdict.ranks),
        node=body.verdict.node,
        evidence=body.evidence,
        verdict=body.verdict.model_dump(mode="json"),
        advice=body.advice,
        message_id=message_id,
        correlation_id=envelope.correlation_id or envelope.message_id,
    )


async def devices_lost(
    term: Term, envelope: AnyEnvelope, body: event.WorkerLost | event.WorkerFrozen | event.NodeLost
) -> Outcome:
    """A verdict that excludes devices. One about a whole node concerns every job that has devices there."""
    if envelope.job != FLEET:
        await _lose(term, fault_of(envelope, body, envelope.job, envelope.message_id), envelope)
    else:
        async with term.store.read() as connection:
            start = body.evidence.get("incarnation")  # of the agent: a newer one may hold new devices already
            devices = [
                d
                for d in await queries.occupied(connection)
                if d.node == body.verdict.node and start in (None, d.incarnation)
            ]
        for job in sorted({d.job for d in devices}):
            fault = fault_of(envelope, body, job, derived_id(envelope.message_id, job))
            ranks = fault.ranks or frozenset(d.rank for d in devices if d.job == job)
            await _lose(term, replace(fault, ranks=ranks), envelope)
    async with term.transaction() as work:
        await work.claim(envelope.message_id)
        await work.record_event(envelope)
        if isinstance(body, event.NodeLost):
            await _mark_node(work, body, envelope.job)
    if isinstance(body, event.NodeLost):  # its agent may be back already, or there is room elsewhere
        await returns.welcome_all(term)
    return Ack()


async def node_left(term: Term, envelope: AnyEnvelope, body: event.NodeLeft, job: str) -> None:
    """An agent said good-bye: its devices are lost to `job` without waiting for a verdict."""
    async with term.store.read() as connection:
        devices = await queries.devices(connection, job)
    verdict = {"fault": "node_lost", "node": body.node, "p": 0.0, "confidence": 1.0}
    fault = Fault(
        job=job,
        kind="node_lost",
        ranks=frozenset(d.rank for d in devices if d.node == body.node),
        node=body.node,
        evidence={"reported_by": envelope.source, "left_in_order": True},
        verdict=verdict,
        advice="exclude the node's devices",
        message_id=derived_id(envelope.message_id, job),
        correlation_id=envelope.message_id,
    )
    await _lose(term, fault, envelope)


def derived_id(message_id: str, job: str) -> str:
    """One message that concerns several jobs is handled once for each of them."""
    return hashlib.sha256(f"{message_id}/{job}".encode()).hexdigest()


async def _mark_node(work: UnitOfWork, body: event.NodeLost, job: str) -> None:
    """The node is lost too, unless its agent is back already: then only the workers of its last start are."""
    node = {n.node: n for n in await queries.nodes(work.connection)}.get(body.verdict.node)
    if node is None or node.state is not NodeState.UP:
        return
    meant = body.evidence.get("incarnation")
    if meant is None and job != FLEET:
        devices = await queries.devices(work.connection, job)
        meant = next((d.incarnation for d in devices if d.node == node.node), None)
    if meant is None or meant == node.incarnation:
        await work.set_node_state(node.node, NodeState.LOST)


async def _lose(term: Term, fault: Fault, envelope: AnyEnvelope) -> None:
    received_s = term.clock.monotonic()
    async with term.lock(fault.job):
        async with term.store.read() as connection:
            before = await load(connection, fault.job)
        new = frozenset(_concerned(fault, before)) if before is not None and before.active else frozenset()
        if before is None or not new:
            log.info("verdict changes nothing", job=fault.job, fault=fault.kind, ranks=sorted(fault.ranks))
            return
        after = before.without(new)
        answer = await _answer(term, after, new)
        plan_s = term.clock.monotonic() - received_s
        term.metrics.planning_s.observe(plan_s)
        async with term.transaction() as work:
            if not await work.claim(fault.message_id):
                return
            await work.record_event(envelope)  # before the events of our answer
            await work.set_devices(fault.job, new, DeviceState.LOST)
            await _respond(term, work, after, fault, answer, plan_s)
    log.warning("devices lost", job=fault.job, fault=fault.kind, ranks=sorted(new), answer=type(answer).__name__)


def _concerned(fault: Fault, situation: Situation) -> Iterator[int]:
    """Living ranks that the fault is about. A worker of a later start of the agent, or of the rank, is another one."""
    incarnation, start = fault.evidence.get("incarnation"), fault.evidence.get("start")
    for rank in fault.ranks & (situation.alive | situation.returning):
        device = situation.of_rank[rank]
        if incarnation in (None, device.incarnation) and start in (None, device.start):
            yield rank


async def _answer(term: Term, after: Situation, lost: frozenset[int]) -> Choice | NoPlan | None:
    """What to do without the lost devices; None: nothing but wait for the others."""
    if after.finished or _were_spare(after, lost) or after.spec.attached is not None:
        return None
    if not after.alive:
        return NoPlan("no device is left")
    if after.job.state is JobState.STARTING and not after.all_started:
        return None
    return await replan.after_loss(term, after)


def _were_spare(after: Situation, lost: frozenset[int]) -> bool:
    """Whether the job runs without them anyway: they had come back and were in no plan yet."""
    return after.job.state is JobState.RUNNING and not lost & after.planned


async def _respond(
    term: Term, work: UnitOfWork, after: Situation, fault: Fault, answer: Choice | NoPlan | None, plan_s: float
) -> None:
    change = after.open if after.open is not None and after.open.mode == "recovery" else None
    correlation_id = change.correlation_id if change is not None else fault.correlation_id
    was_slow = await slowness.close_lost(work, after.name, fault.ranks)
    incident = replace(fault, correlation_id=was_slow or correlation_id).incident(work)
    await work.add_incident(incident)
    if after.spec.attached is not None:  # its launcher decides
        if after.finished and not after.alive:  # the others have outlived it
            await _finish_without(term, work, after)
        return
    if isinstance(answer, NoPlan):
        await endings.fail(term, work, after, f"{fault.text}; {answer.reason}")
    elif isinstance(answer, Choice):
        cause = Cause(
            mode="initial" if after.job.state is JobState.STARTING else "recovery",
            reason=f"{fault.text}; {answer.reason}",
            incident_id=incident.id,
            correlation_id=incident.correlation_id,
            # A second fault during a repair: the outage began with the first one.
            detect_s=change.phases_s.get("detect", 0.0) if change is not None else fault.detect_s,
            plan_s=plan_s,
        )
        identifier = await changes.issue(term, work, after, answer, cause)
        await replan.record(work, after, answer, incident, identifier, plan_s)
        if after.job.state is JobState.STARTING:
            await start_running(term, work, after, answer)
    elif after.finished:
        await _finish_without(term, work, after)
    elif _were_spare(after, fault.ranks):
        await work.close_incident(incident.id, "they were in no plan")


async def _finish_without(term: Term, work: UnitOfWork, after: Situation) -> None:
    """The last iteration is committed everywhere, so nothing is lost with the device but its copy of the result."""
    if after.alive:
        await endings.finish_rest(term, work, after, after.alive)
        if after.open is not None:
            await changes.reject(term, work, after.open, "the last iteration is committed")
    else:
        await endings.finish(term, work, after, [d.result for d in after.devices if d.result is not None])


async def start_running(term: Term, work: UnitOfWork, situation: Situation, choice: Choice) -> None:
    """The first plan is on its way."""
    await work.set_job(situation.name, JobState.RUNNING)
    body = event.JobStarted(plan_digest=choice.plan.digest, ranks=choice.plan.world)
    await changes.publish(term, work, body, job=situation.name, epoch=choice.plan.epoch)


async def link_lost(term: Term, envelope: AnyEnvelope, body: event.LinkLost) -> Outcome:
    """No device is to blame: the same layout in a new epoch, so that all groups are formed anew."""
    received_s = term.clock.monotonic()
    async with term.lock(envelope.job), term.transaction() as work:
        situation = await take_up(work, envelope)
        if situation is None:
            return Ack()
        fault = fault_of(envelope, body, envelope.job, envelope.message_id)
        attempt = situation.open.attempt + 1 if situation.open and situation.open.mode != "planned" else 1
        await renew(term, work, situation, fault, "form all groups anew", attempt, received_s)
    return Ack()


async def take_up(work: UnitOfWork, envelope: AnyEnvelope) -> Situation | None:
    """Claim and log a verdict that blames no device of its epoch. Returns the running job; None if there is nothing to
    do: it was handled before, the job does not run, or the groups of that epoch are being replaced anyway (which a
    pending planned change does not do)."""
    if not await work.claim(envelope.message_id):
        return None
    await work.record_event(envelope)
    situation = await load(work.connection, envelope.job)
    if situation is None or situation.job.state is not JobState.RUNNING:
        return None
    if any(c.new_epoch > envelope.epoch and c.mode != "planned" for c in situation.changes):
        log.info("verdict of a past epoch", job=envelope.job, epoch=envelope.epoch, schema=envelope.schema_)
        return None
    return situation


async def renew(
    term: Term, work: UnitOfWork, situation: Situation, fault: Fault, answer: str, attempt: int, received_s: float
) -> None:
    """An incident that the layout in force under a new epoch is the answer to."""
    incident = fault.incident(work)
    await work.add_incident(incident)
    if situation.finished:
        await _finish_without(term, work, situation)
        return
    if attempt > term.settings.max_attempts:
        await endings.fail(
            term, work, situation, f"{fault.text}; the groups could not be formed in {attempt - 1} tries"
        )
        return
    cause = Cause(
        mode="recovery",
        reason=f"{fault.text}; {answer}",
        incident_id=incident.id,
        correlation_id=fault.correlation_id,
        detect_s=fault.detect_s,
        plan_s=term.clock.monotonic() - received_s,
        attempt=attempt,
    )
    await changes.issue(term, work, situation, same_layout(situation), cause)


def same_layout(situation: Situation) -> Choice:
    """The plan in force under the next epoch."""
    plan, old = situation.plan_in_force().with_epoch(situation.newest_epoch + 1), situation.in_force
    predicted = old.predicted_tokens_per_s if old is not None else None
    led_here = next((c for c in situation.changes if old is not None and c.new_epoch == old.epoch), None)
    by, share = (led_here.predicted_by, led_here.speed_share) if led_here is not None else ("", None)
    return Choice(plan, "", "same layout", predicted, predicted, by, share)
