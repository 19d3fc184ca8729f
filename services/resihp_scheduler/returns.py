"""Devices come back: lost ranks get new workers, and then, at a planned change, work.

A rank keeps its number. Its device is `returning` from the command that starts its worker until the worker says hello;
then it is a standby device outside the plan, and `decide` weighs a layout with it. The ranks that run are not
restarted: they switch by the vote of an iteration. Everything here is idempotent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import structlog

from resihp_messages import command
from resihp_scheduler.situation import Situation, load, ranks_text
from resihp_scheduler.submission import free_slots
from resihp_scheduler.term import Term
from resihp_store import DeviceRecord, DeviceState, JobState, NodeState, UnitOfWork, queries

log = structlog.get_logger(__name__)

Place = tuple[str, int]
"""(node, slot)."""


async def welcome_all(term: Term) -> None:
    """After a node came: every running job may take back what it lost."""
    async with term.store.read() as connection:
        running = await queries.jobs(connection, states=[JobState.RUNNING])
    for job in running:
        await welcome(term, job.job)


async def welcome(term: Term, job: str) -> None:
    """Start lost ranks again whose agent is gone, where slots are free (their node came back, or there is room)."""
    async with term.lock(job), term.transaction() as work:
        situation = await load(work.connection, job)
        if situation is None or not _can_take_back(situation) or situation.spec.rejoin != "automatic":
            return
        await take_back(term, work, situation, [d.rank for d in situation.devices if _is_homeless(situation, d)])


async def take_back(term: Term, work: UnitOfWork, situation: Situation, ranks: Collection[int]) -> tuple[int, ...]:
    """Start those of these lost ranks for which there is a slot; returns them."""
    if not ranks:
        return ()
    nodes = [n for n in situation.nodes.values() if n.state is NodeState.UP]
    free = free_slots(nodes, await queries.occupied(work.connection))
    places = find_places(situation, ranks, free)
    started: defaultdict[str, list[DeviceRecord]] = defaultdict(list)
    for rank, (node, slot) in places.items():
        device = situation.of_rank[rank]
        incarnation, start = situation.nodes[node].incarnation, device.start + 1
        await work.set_devices(
            situation.name,
            [rank],
            DeviceState.RETURNING,
            node=node,
            slot=slot,
            incarnation=incarnation,
            start=start,
            pid=None,
            p=1.0,
        )
        started[node].append(device)
    for node, devices in sorted(started.items()):
        body = command.StartWorkers(
            node=node,
            token=term.token,
            agent_incarnation=situation.nodes[node].incarnation,
            ranks=tuple(d.rank for d in devices),
            starts=tuple(d.start + 1 for d in devices),
            spec=situation.spec,
        )
        await work.send(term.envelope(body, job=situation.name, epoch=situation.newest_epoch), detail=node)
    if places:
        log.info("lost ranks are started again", job=situation.name, places={r: p[0] for r, p in places.items()})
    return tuple(places)


def find_places(situation: Situation, ranks: Iterable[int], free: Mapping[str, Iterable[int]]) -> dict[int, Place]:
    """Rank -> (node, slot). A rank keeps its slot if its agent lives; else its old node is preferred, then the node
    with the most free slots (then by name). Ranks for which nothing is left are not in the answer."""
    left = {node: list(slots) for node, slots in free.items()}
    found: dict[int, Place] = {}
    for rank in sorted(ranks):
        device = situation.of_rank[rank]
        if not _is_homeless(situation, device):
            found[rank] = (device.node, device.slot)
            continue
        roomy = [node for node, slots in left.items() if slots]
        if roomy:
            node = min(roomy, key=lambda n: (n != device.node, -len(left[n]), n))
            found[rank] = (node, left[node].pop(0))
    return found


def _can_take_back(situation: Situation) -> bool:
    """The first plan is installed, and nobody has finished."""
    if situation.spec.attached is not None:
        return False
    return situation.job.state is JobState.RUNNING and situation.job.epoch > 0 and not situation.finished


def _is_homeless(situation: Situation, device: DeviceRecord) -> bool:
    """Whether the device is lost together with the agent that held it."""
    node = situation.nodes.get(device.node)
    is_held = node is not None and node.state is NodeState.UP and node.incarnation == device.incarnation
    return device.state is DeviceState.LOST and not is_held


async def request(term: Term, work: UnitOfWork, situation: Situation, rank: int) -> str:
    """An operator wants a lost rank back; returns why not, or an empty text."""
    device = situation.of_rank.get(rank)
    if device is None or device.state is not DeviceState.LOST:
        state = "unknown" if device is None else str(device.state)
        return f"rank {rank} is {state}, not lost; lost: {ranks_text(situation.lost) if situation.lost else 'none'}"
    if not _can_take_back(situation):
        return f"job {situation.name} is starting or ending"
    if not await take_back(term, work, situation, [rank]):
        return f"no node has a free slot for rank {rank}"
    return ""
