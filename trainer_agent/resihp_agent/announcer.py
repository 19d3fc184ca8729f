"""Wraps bodies in envelopes that name this agent and its incarnation, and sends them the way their kind asks for."""

from __future__ import annotations

from resihp_agent.outbox import Outbox
from resihp_bus.port import Bus, BusUnavailable
from resihp_messages import FLEET, AnyEnvelope, Body, Kind
from resihp_messages.report import IterationReport, NodeBeat


def detail_of(body: Body, node: str) -> str:
    """Last token of the subject: the schema name without its version for events, the node for everything else."""
    return body.schema_name.rpartition(".")[0] if body.kind is Kind.EVENT else node


class Announcer:
    """The agent's voice. Events and acks go through the outbox; beats and reports are dropped when the bus is down."""

    def __init__(self, bus: Bus, outbox: Outbox, *, node: str, incarnation: str) -> None:
        self._bus = bus
        self._outbox = outbox
        self._node = node
        self._incarnation = incarnation
        self.num_dropped_beats = 0
        self.num_dropped_reports = 0

    def say(self, body: Body, *, job: str = FLEET, epoch: int = 0, correlation_id: str = "") -> None:
        """An event or acknowledgement: stored once, whenever the bus is back. Never waits."""
        envelope = self._wrap(body, job=job, epoch=epoch, correlation_id=correlation_id)
        self._outbox.put(envelope, detail=detail_of(body, self._node))

    def report(self, body: IterationReport, *, job: str, epoch: int) -> None:
        """An iteration report: handed over without waiting, counted if dropped."""
        if not self._bus.publish_soon(self._wrap(body, job=job, epoch=epoch), detail=self._node):
            self.num_dropped_reports += 1

    async def beat(self, body: NodeBeat) -> None:
        """A beat: newest wins, counted if dropped."""
        try:
            await self._bus.publish(self._wrap(body), detail=self._node)
        except BusUnavailable:
            self.num_dropped_beats += 1

    def _wrap(self, body: Body, *, job: str = FLEET, epoch: int = 0, correlation_id: str = "") -> AnyEnvelope:
        return AnyEnvelope.of(
            body,
            job=job,
            source=f"agent-{self._node}"[:64],
            incarnation=self._incarnation,
            epoch=epoch,
            correlation_id=correlation_id,
        )
