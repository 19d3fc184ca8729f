"""Issuing a change of plan and closing it: rows, events and commands of one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from resihp_messages import command, event, new_id
from resihp_messages.placement import NodeRanks, PackedPlacement
from resihp_plan import ParallelPlan
from resihp_plan.compact import compact
from resihp_scheduler.phases import Outcome
from resihp_scheduler.planning import Choice
from resihp_scheduler.situation import Situation
from resihp_scheduler.term import Term
from resihp_store import PlanRecord, ReconfigurationRecord, ReconfigurationStatus, UnitOfWork, decisions, queries

Mode = Literal["initial", "recovery", "planned"]
DIVERGED = "state_diverged"
"""Kind of an incident. An open one has ranks go back."""
MANY_RANKS = 128
"""From here on plans and placements travel in their compact forms; below, anybody can read the messages."""


@dataclass(frozen=True)
class Cause:
    """Why a plan changes."""

    mode: Mode
    reason: str
    incident_id: str | None = None
    correlation_id: str = ""
    detect_s: float = 0.0
    """What the verdict's evidence says; kept in the phases until the change is applied."""
    plan_s: float = 0.0
    """From the receipt of the verdict (or request) to the decision."""
    attempt: int = 1


async def issue(term: Term, work: UnitOfWork, situation: Situation, choice: Choice, cause: Cause) -> str:
    """Write plan and reconfiguration, send the commands. A change under way is superseded. Returns the new id."""
    identifier = new_id()
    plan, old = await _standing_by(work, situation, choice.plan), situation.in_force
    if situation.open is not None:
        await supersede(term, work, situation.open, by=identifier, reason=cause.reason)
    predicted = choice.predicted_tokens_per_s
    await work.add_plan(PlanRecord(situation.name, plan.epoch, plan.digest, plan.to_dict(), predicted, work.now, None))
    await work.add_reconfiguration(
        ReconfigurationRecord(
            id=identifier,
            job=situation.name,
            incident_id=cause.incident_id,
            mode=cause.mode,
            status=ReconfigurationStatus.PLANNED,
            attempt=cause.attempt,
            old_epoch=old.epoch if old else 0,
            new_epoch=plan.epoch,
            old_digest=old.digest if old else "",
            new_digest=plan.digest,
            reason=cause.reason,
            difference=choice.difference,
            alternatives=choice.alternatives,
            phases_s={"detect": cause.detect_s, "plan": cause.plan_s},
            proof={},
            bytes_moved=None,
            bound_tokens_per_s=choice.bound_tokens_per_s,
            predicted_by=choice.predicted_by,
            speed_share=choice.speed_share,
            predicted_tokens_per_s=predicted,
            achieved_tokens_per_s=None,
            correlation_id=cause.correlation_id,
            outcome="",
            created_at=work.now,
            applied_at=None,
            closed_at=None,
        )
    )
    await _send_plan(term, work, situation, plan, identifier, cause)
    if old is not None and cause.mode != "initial":
        planned = event.ReconfigurationPlanned(
            reconfiguration_id=identifier,
            reason=cause.reason[:4096],
            mode=cause.mode,
            old_digest=old.digest,
            new_digest=plan.digest,
            difference=choice.difference[:4096],
            plan_s=cause.plan_s,
            predicted_tokens_per_s=predicted or 0.0,
        )
        await publish(term, work, planned, job=situation.name, epoch=plan.epoch, correlation_id=cause.correlation_id)
    return identifier


async def _standing_by(work: UnitOfWork, situation: Situation, plan: ParallelPlan) -> ParallelPlan:
    """Evicted devices keep their process in the job's world: they take part in votes, and hold and compute nothing."""
    evicted = (await decisions.control(work.connection, situation.name)).evicted
    spare = evicted & situation.alive & situation.planned - set(plan.world)
    return replace(plan, standby=tuple(sorted({*plan.standby, *spare}))) if spare else plan


async def _send_plan(
    term: Term, work: UnitOfWork, situation: Situation, plan: ParallelPlan, identifier: str, cause: Cause
) -> None:
    """One `ApplyPlan` for every node that has a rank of the plan's world."""
    nodes = situation.nodes_of(plan.world)
    # The store may live on any node that takes part; the first rank's is as good as any, and the same for all.
    store_address = situation.nodes[situation.of_rank[plan.world[0]].node].store_address
    many = len(plan.world) > MANY_RANKS
    document, *bases = (
        compact(known) if many else dict(known) for known in (plan.to_dict(), *(base.plan for base in situation.bases))
    )
    back_to = await _agreed_before(work, situation.name) if cause.mode == "recovery" else None
    parts = _placement(situation, {*plan.world, *situation.lost})
    placement = PackedPlacement.of(parts) if many else parts
    for node, devices in nodes.items():
        body = command.ApplyPlan(
            node=node,
            token=term.token,
            agent_incarnation=devices[0].incarnation,
            mode=cause.mode,
            reconfiguration_id=identifier,
            plan=document,
            digest=plan.digest,
            base_plans=tuple(bases),
            store_address=store_address,
            dead_ranks=tuple(sorted(situation.lost)),
            placement=placement,
            back_to=back_to,
        )
        envelope = term.envelope(
            body, job=situation.name, epoch=plan.epoch, correlation_id=cause.correlation_id or identifier
        )
        await work.send(envelope, detail=node)


async def _agreed_before(work: UnitOfWork, job: str) -> int | None:
    """Where all ranks go back to because replicas differ. Until a recovery is applied, each that takes its place says
    so too: nobody knows who has gone back already."""
    incidents = await queries.incidents(work.connection, job_name=job, only_open=True)
    return min((int(i.evidence["agreed_iteration"]) for i in incidents if i.kind == DIVERGED), default=None)


def _placement(situation: Situation, ranks: Iterable[int]) -> tuple[NodeRanks, ...]:
    return tuple(
        NodeRanks(
            node=node,
            ranks=tuple(d.rank for d in devices),
            starts=tuple(d.start for d in devices) if any(d.start for d in devices) else (),
        )
        for node, devices in situation.nodes_of(ranks).items()
    )


async def supersede(term: Term, work: UnitOfWork, change: ReconfigurationRecord, *, by: str, reason: str) -> None:
    """A newer change takes the place of one under way."""
    text = f"superseded by {by}: {reason}"
    await _close(term, work, change, ReconfigurationStatus.SUPERSEDED, text)
    if change.mode != "initial":
        body = event.ReconfigurationSuperseded(
            reconfiguration_id=change.id, by_reconfiguration_id=by, reason=reason[:4096]
        )
        await publish(term, work, body, job=change.job, epoch=change.new_epoch, correlation_id=change.correlation_id)


async def reject(term: Term, work: UnitOfWork, change: ReconfigurationRecord, reason: str) -> None:
    """A change that was refused, or that the end of the job overtook."""
    await _close(term, work, change, ReconfigurationStatus.REJECTED, reason)
    if change.mode != "initial":
        body = event.ReconfigurationRejected(reconfiguration_id=change.id, reason=reason[:4096])
        await publish(term, work, body, job=change.job, epoch=change.new_epoch, correlation_id=change.correlation_id)


async def apply(term: Term, work: UnitOfWork, change: ReconfigurationRecord, result: Outcome) -> None:
    """All ranks run the new plan and its first iteration is committed."""
    values: dict[str, Any] = {
        "phases_s": dict(result.phases_s),
        "bytes_moved": result.bytes_moved,
        "proof": dict(result.proof),
        "lost_iterations": result.lost_iterations,
        "state_source": result.state_source,
    }
    await _close(term, work, change, ReconfigurationStatus.APPLIED, "", applied_at=work.now, **values)
    if change.mode != "initial":
        body = event.ReconfigurationApplied(reconfiguration_id=change.id, new_digest=change.new_digest, **values)
        await publish(term, work, body, job=change.job, epoch=change.new_epoch, correlation_id=change.correlation_id)


async def _close(
    term: Term,
    work: UnitOfWork,
    change: ReconfigurationRecord,
    status: ReconfigurationStatus,
    outcome: str,
    **values: Any,
) -> None:
    await work.set_reconfiguration(change.id, status=str(status), outcome=outcome, closed_at=work.now, **values)
    term.metrics.reconfigurations.labels(status=str(status)).inc()


async def publish(
    term: Term, work: UnitOfWork, body: event._Event, *, job: str, epoch: int = 0, correlation_id: str = ""
) -> None:
    """Put one of our events into log and outbox."""
    envelope = term.envelope(body, job=job, epoch=epoch, correlation_id=correlation_id)
    await work.send(envelope, detail=type(body).schema_name.partition(".")[0])
