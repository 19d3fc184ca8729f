"""Nodes come and go."""

from __future__ import annotations

from resihp_bus import Ack, Outcome
from resihp_messages import AnyEnvelope, event
from resihp_scheduler import losses, returns
from resihp_scheduler.submission import place_waiting
from resihp_scheduler.term import Term
from resihp_store import NodeRecord, NodeState, queries


async def node_joined(term: Term, envelope: AnyEnvelope, body: event.NodeJoined) -> Outcome:
    """A node offers its slots; it may also say so again with a new store address."""
    async with term.transaction() as work:
        if not await work.claim(envelope.message_id):
            return Ack()
        await work.record_event(envelope)
        known = {n.node: n for n in await queries.nodes(work.connection)}.get(body.node)
        same_start = known is not None and known.incarnation == envelope.incarnation
        await work.put_node(
            NodeRecord(
                node=body.node,
                incarnation=envelope.incarnation,
                host=body.host,
                comm_host=body.comm_host,
                num_slots=body.num_slots,
                store_address=body.store_address,
                state=NodeState.UP,
                joined_at=known.joined_at if known is not None and same_start else work.now,
                changed_at=work.now,
            )
        )
    await returns.welcome_all(term)  # running jobs first: they lost what others only wait for
    async with term.transaction() as work:
        await place_waiting(term, work)
    return Ack()


async def node_left(term: Term, envelope: AnyEnvelope, body: event.NodeLeft) -> Outcome:
    """An agent stopped in order, and its workers with it: for their jobs that is a loss."""
    async with term.store.read() as connection:
        jobs = {
            d.job
            for d in await queries.occupied(connection)
            if d.node == body.node and d.incarnation == envelope.incarnation
        }
    for job in sorted(jobs):
        await losses.node_left(term, envelope, body, job)
    async with term.transaction() as work:
        if await work.claim(envelope.message_id):
            await work.record_event(envelope)
            node = {n.node: n for n in await queries.nodes(work.connection)}.get(body.node)
            if node is not None and node.incarnation == envelope.incarnation:
                await work.set_node_state(body.node, NodeState.LEFT)
    return Ack()
