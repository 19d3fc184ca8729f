"""Plays agents and scheduler for a detector, and hears its verdicts."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, TypeVar

from resihp_bus import Bus
from resihp_messages import FLEET, AnyEnvelope, Body, JobSpec, Kind, TimeoutConfig, ack, event
from resihp_messages.report import NodeBeat, WorkerBeat

JOB = "demo"
FailureEvent = event.WorkerLost | event.WorkerFrozen | event.NodeLost | event.LinkLost
F = TypeVar("F", bound=Body)


def exited(rank: int, *, node: str = "n0", fenced: bool = False, code: int | None = -9) -> event.WorkerExited:
    return event.WorkerExited(
        node=node, rank=rank, pid=1000 + rank, exit_code=code, iteration=7, detect_s=0.004, fenced=fenced
    )


def broken(rank: int, *, node: str = "n0") -> event.LinkBroken:
    return event.LinkBroken(node=node, rank=rank, group=f"tp{rank}", error="connection reset", iteration=7)


class Surroundings:
    """Everybody else on the bus."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.verdicts: list[AnyEnvelope] = []
        self._sequence = itertools.count(1)

    async def start(self) -> None:
        await self.bus.listen(Kind.EVENT, self._hear)

    async def _hear(self, envelope: AnyEnvelope) -> None:
        if isinstance(envelope.body, FailureEvent):
            self.verdicts.append(envelope)

    def of(self, body_class: type[F], *, job: str | None = None) -> list[F]:
        """Verdicts of this class by message id, each once."""
        found = {e.message_id: e for e in self.verdicts if isinstance(e.body, body_class) and job in (None, e.job)}
        return [e.body for e in found.values() if isinstance(e.body, body_class)]

    def counts(self) -> Counter[str]:
        """How often each verdict was heard."""
        return Counter(e.message_id for e in self.verdicts)

    async def say(
        self, body: Body, *, job: str = JOB, epoch: int = 1, incarnation: str = "a1", message_id: str | None = None
    ) -> AnyEnvelope:
        envelope = AnyEnvelope.of(
            body, job=job, source="agent-n0", incarnation=incarnation, epoch=epoch, message_id=message_id
        )
        name = body.schema_name.partition(".")[0]
        await self.bus.publish(envelope, detail=name if type(body).kind is Kind.EVENT else "n0")
        return envelope

    async def join(self, node: str = "n0", incarnation: str = "a1") -> None:
        body = event.NodeJoined(node=node, host="h", comm_host="127.0.0.1", num_slots=8, store_address="127.0.0.1:1")
        await self.say(body, job=FLEET, incarnation=incarnation, epoch=0)

    async def leave(self, node: str = "n0", incarnation: str = "a1") -> None:
        await self.say(event.NodeLeft(node=node), job=FLEET, incarnation=incarnation, epoch=0)

    async def started(self, *ranks: int, node: str = "n0", incarnation: str = "a1", job: str = JOB) -> None:
        body = ack.WorkersStarted(node=node, ranks=ranks, pids=tuple(1000 + rank for rank in ranks))
        await self.say(body, job=job, incarnation=incarnation)

    async def beat(self, *ranks: int, node: str = "n0", incarnation: str = "a1", **changes: Any) -> None:
        workers = tuple(
            WorkerBeat(job=JOB, rank=rank, pid=1000 + rank, state="training", epoch=1, iteration=5, ops=9, silent_s=0.0)
            for rank in ranks
        )
        body = NodeBeat(
            node=node,
            sequence=next(self._sequence),
            period_s=0.25,
            host="h",
            comm_host="127.0.0.1",
            num_slots=8,
            store_address="127.0.0.1:1",
            workers=workers,
            **changes,
        )
        await self.say(body, job=FLEET, incarnation=incarnation, epoch=0)

    async def submitted(self, node_s: float) -> None:
        spec = JobSpec(name=JOB, timeouts=TimeoutConfig(stall_s=0.5 * node_s, node_s=node_s))
        await self.say(event.JobSubmitted(spec=spec.model_dump(mode="json")))
