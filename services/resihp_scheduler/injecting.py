"""Faults on purpose: orders to the agents of those at whom they strike."""

from __future__ import annotations

from resihp_messages import command
from resihp_messages.request import Reply, RequestFault
from resihp_plan import ParallelPlan, routes
from resihp_plan.groups import edge_places
from resihp_scheduler.asked import Asked, refused
from resihp_scheduler.situation import Situation, ranks_text


async def inflict_fault(asked: Asked) -> Reply:
    """Testing: have an agent kill, freeze or slow a worker, or corrupt its state; or the agents of two workers slow
    the pipeline edge between them."""
    body, situation, term = asked.envelope.body, asked.situation, asked.term
    assert isinstance(body, RequestFault)
    ends = (body.rank,) if body.peer is None else (body.rank, body.peer)
    if reason := _not_to_inflict(body, situation):
        return refused(reason)
    for rank, peer in zip(ends, reversed(ends), strict=True):
        device = situation.of_rank[rank]
        order = command.InflictFault(
            node=device.node,
            token=term.token,
            agent_incarnation=device.incarnation,
            rank=rank,
            fault=body.fault,
            factor=body.factor,
            for_s=body.for_s,
            peer=peer if len(ends) > 1 else None,
        )
        sent = term.envelope(
            order, job=situation.name, epoch=situation.newest_epoch, correlation_id=asked.envelope.message_id
        )
        await asked.work.send(sent, detail=device.node)
    return Reply(accepted=True)


def _not_to_inflict(body: RequestFault, situation: Situation) -> str:
    """Why the fault cannot be; empty if it can."""
    ends = {body.rank} if body.peer is None else {body.rank, body.peer}
    if gone := ends - situation.alive:
        return f"rank {min(gone)} is not alive; alive: {ranks_text(situation.alive)}"
    if body.fault.startswith("slow") and not situation.spec.clock.virtual:
        return "a slow device or link needs a job with clock.virtual = true"
    if body.peer is not None and frozenset(ends) not in _edges(situation.plan_in_force()):
        return f"no pipeline edge connects ranks {body.rank} and {body.peer}"
    return ""


def _edges(plan: ParallelPlan) -> set[frozenset[int]]:
    """Ranks between which activations pass."""
    return {frozenset((r.source, r.destination)) for a, b in edge_places(plan) for r in routes(plan, a, b)}
