"""Jobs come in and are given slots."""

from __future__ import annotations

from collections import defaultdict

import structlog

from resihp_messages import FLEET, AnyEnvelope, JobSpec, command, event
from resihp_plan import InvalidPlan
from resihp_plan.planner import Infeasible
from resihp_scheduler import changes
from resihp_scheduler.placement import place
from resihp_scheduler.planning import JobPlanning
from resihp_scheduler.term import Term
from resihp_store import DeviceRecord, DeviceState, JobState, NodeRecord, NodeState, UnitOfWork, queries

log = structlog.get_logger(__name__)


async def submit(term: Term, work: UnitOfWork, envelope: AnyEnvelope, spec: JobSpec) -> str:
    """Accept a job; returns why not, or an empty text. Names are unique for the life of the database."""
    name = spec.name
    if name == FLEET or envelope.job != name:
        return f"the job is named {name!r}, but the request is about {envelope.job!r}"
    if (known := await queries.job(work.connection, name)) is not None:
        return f"there is a job {name!r} already ({known.state}); choose another name"
    try:
        JobPlanning(spec).initial()
    except (Infeasible, InvalidPlan) as error:
        return str(error)
    document = spec.model_dump(mode="json")
    await work.add_job(name, document)
    body = event.JobSubmitted(spec=document)
    await changes.publish(term, work, body, job=name, correlation_id=envelope.message_id)
    await place_waiting(term, work)
    return ""


async def place_waiting(term: Term, work: UnitOfWork) -> None:
    """Deal slots to waiting jobs in the order of submission.

    A job that waits for slots holds back younger ones, unless the whole fleet is too small for it.
    """
    waiting = await queries.jobs(work.connection, states=[JobState.SUBMITTED])
    if not waiting:
        return
    nodes = [n for n in await queries.nodes(work.connection) if n.state is NodeState.UP]
    num_slots = sum(n.num_slots for n in nodes)
    for job in waiting:
        spec = JobSpec.model_validate(job.spec)
        if spec.parallel.num_devices > num_slots:
            log.info("job waits for a larger fleet", job=job.job, devices=spec.parallel.num_devices, slots=num_slots)
            continue
        free = free_slots(nodes, await queries.occupied(work.connection))
        dealt = place(JobPlanning(spec).initial(), free)
        if dealt is None:
            return
        await _start(term, work, spec, dealt, {n.node: n for n in nodes})


def free_slots(nodes: list[NodeRecord], occupied: tuple[DeviceRecord, ...]) -> dict[str, list[int]]:
    """Slots that nobody holds. A lost device keeps its slot until its job ends or its node's agent starts anew."""
    taken: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for device in occupied:
        taken[device.node, device.incarnation].add(device.slot)
    return {n.node: [s for s in range(n.num_slots) if s not in taken[n.node, n.incarnation]] for n in nodes}


async def _start(
    term: Term, work: UnitOfWork, spec: JobSpec, dealt: dict[int, tuple[str, int]], nodes: dict[str, NodeRecord]
) -> None:
    ranks_of: defaultdict[str, list[int]] = defaultdict(list)
    for rank in sorted(dealt):
        ranks_of[dealt[rank][0]].append(rank)
    await work.add_devices(
        DeviceRecord(spec.name, rank, node, slot, nodes[node].incarnation, DeviceState.STARTING, None, None, work.now)
        for rank, (node, slot) in sorted(dealt.items())
    )
    await work.set_job(spec.name, JobState.STARTING)
    for node, ranks in sorted(ranks_of.items()):
        body = command.StartWorkers(
            node=node,
            token=term.token,
            agent_incarnation=nodes[node].incarnation,
            ranks=tuple(ranks),
            spec=spec,
        )
        await work.send(term.envelope(body, job=spec.name), detail=node)
    log.info("job gets its slots", job=spec.name, nodes=dict(ranks_of))
