"""One fenced transaction: state, events and outgoing messages are written together or not at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from resihp_messages import AnyEnvelope, Body, Envelope, Kind, encode
from resihp_store import tables as t
from resihp_store.engine import upsert_of
from resihp_store.records import (
    AckRecord,
    DeviceRecord,
    DeviceState,
    IncidentRecord,
    IterationRecord,
    JobState,
    Json,
    NodeRecord,
    NodeState,
    PlanRecord,
    ReconfigurationRecord,
)


class UnitOfWork:
    """Writes of one transaction of the leader, made by `Store.transaction`. `connection` also serves `queries`."""

    def __init__(self, connection: AsyncConnection, *, token: int, now: datetime) -> None:
        self.connection = connection
        self.token = token
        self.now = now
        self.sends = False
        """Whether something was put into the outbox."""
        self.upsert = upsert_of(connection.dialect.name)
        """The database's `insert` that knows conflicts."""

    # --- messages ---------------------------------------------------------------------------------------------

    async def claim(self, message_id: str) -> bool:
        """True the first time: whoever claims an id handles the message, in this same transaction."""
        statement = self.upsert(t.inbox).values(message_id=message_id, processed_at=self.now).on_conflict_do_nothing()
        return bool((await self.connection.execute(statement)).rowcount)

    async def reply_of(self, message_id: str) -> bytes | None:
        """The answer that a request with this id was given."""
        query = select(t.inbox.c.reply).where(t.inbox.c.message_id == message_id)
        return (await self.connection.execute(query)).scalar_one_or_none()

    async def keep_reply(self, message_id: str, reply: AnyEnvelope) -> None:
        """Remember the answer to a claimed request."""
        where = t.inbox.c.message_id == message_id
        await self.connection.execute(update(t.inbox).where(where).values(reply=encode(reply)))

    async def record_event(self, envelope: Envelope[Any]) -> bool:
        """Put an event into the log; False if it is there already."""
        statement = self.upsert(t.events).values(
            message_id=envelope.message_id,
            job=envelope.job,
            epoch=envelope.epoch,
            name=envelope.schema_.partition(".")[0],
            source=envelope.source,
            correlation_id=envelope.correlation_id,
            occurred_at=envelope.occurred_at,
            body=envelope.body.model_dump(mode="json"),
        )
        return bool((await self.connection.execute(statement.on_conflict_do_nothing())).rowcount)

    async def send(self, envelope: Envelope[Any], *, detail: str) -> None:
        """Put a message into the outbox; events go into the log too."""
        body: Body = envelope.body
        if body.kind is Kind.EVENT:
            await self.record_event(envelope)
        statement = self.upsert(t.outbox).values(
            message_id=envelope.message_id,
            job=envelope.job,
            kind=str(body.kind),
            detail=detail,
            payload=encode(envelope),
            created_at=self.now,
        )
        await self.connection.execute(statement.on_conflict_do_nothing())
        self.sends = True

    async def mark_sent(self, ids: Sequence[int]) -> None:
        await self.connection.execute(update(t.outbox).where(t.outbox.c.id.in_(ids)).values(sent_at=self.now))

    async def set_cursor(self, name: str, sequence: int) -> None:
        """How far a stream was read: kept in the same transaction as what was read."""
        statement = self.upsert(t.cursors).values(name=name, sequence=sequence)
        statement = statement.on_conflict_do_update(index_elements=["name"], set_={"sequence": sequence})
        await self.connection.execute(statement)

    # --- state ------------------------------------------------------------------------------------------------

    async def add_job(self, job: str, spec: Json) -> None:
        number = select(func.coalesce(func.max(t.jobs.c.number), 0) + 1).scalar_subquery()
        values = {"job": job, "number": number, "state": str(JobState.SUBMITTED), "spec": spec}
        await self.connection.execute(insert(t.jobs).values(**values, submitted_at=self.now))

    async def set_job(self, job: str, state: JobState, *, reason: str = "", **values: Any) -> None:
        """Move a job to `state`; `values` are further columns (`committed`, `samples_expected`, ...)."""
        if state is JobState.RUNNING:
            values["started_at"] = self.now
        elif state.ended:
            values["finished_at"] = self.now
        where = t.jobs.c.job == job
        await self.connection.execute(update(t.jobs).where(where).values(state=str(state), reason=reason, **values))

    async def put_node(self, node: NodeRecord) -> None:
        values = asdict(node) | {"state": str(node.state)}
        statement = self.upsert(t.nodes).values(**values)
        await self.connection.execute(statement.on_conflict_do_update(index_elements=["node"], set_=values))

    async def set_node_state(self, node: str, state: NodeState) -> None:
        where = t.nodes.c.node == node
        await self.connection.execute(update(t.nodes).where(where).values(state=str(state), changed_at=self.now))

    async def add_devices(self, devices: Iterable[DeviceRecord]) -> None:
        await self.connection.execute(insert(t.devices), [asdict(d) | {"state": str(d.state)} for d in devices])

    async def set_speeds(self, job: str, speeds: Mapping[int, float]) -> None:
        """Speeds with which devices are planned from now on."""
        for rank, p in speeds.items():
            where = (t.devices.c.job == job, t.devices.c.rank == rank)
            await self.connection.execute(update(t.devices).where(*where).values(p=p, changed_at=self.now))

    async def set_devices(self, job: str, ranks: Collection[int], state: DeviceState, **values: Any) -> None:
        """Move devices to `state`; `values` are further columns (`pid`, `result`)."""
        where = (t.devices.c.job == job, t.devices.c.rank.in_(sorted(ranks)))
        statement = update(t.devices).where(*where).values(state=str(state), changed_at=self.now, **values)
        await self.connection.execute(statement)

    async def add_plan(self, plan: PlanRecord) -> None:
        await self.connection.execute(insert(t.plans).values(**asdict(plan)))

    async def mark_installed(self, job: str, epoch: int) -> None:
        where = (t.plans.c.job == job, t.plans.c.epoch == epoch, t.plans.c.installed_at.is_(None))
        await self.connection.execute(update(t.plans).where(*where).values(installed_at=self.now))

    async def add_incident(self, incident: IncidentRecord) -> None:
        await self.connection.execute(insert(t.incidents).values(**asdict(incident) | {"ranks": list(incident.ranks)}))
        await self._index_ranks(incident.id, incident.ranks)

    async def close_incident(self, incident_id: str, resolution: str) -> None:
        where = (t.incidents.c.id == incident_id, t.incidents.c.closed_at.is_(None))
        values = {"closed_at": self.now, "resolution": resolution}
        await self.connection.execute(update(t.incidents).where(*where).values(**values))

    async def name_culprits(self, incident_id: str, *, ranks: Sequence[int], **values: Any) -> None:
        """What was found out later about an incident: whom it is about, and columns of its row."""
        where = t.incidents.c.id == incident_id
        await self.connection.execute(update(t.incidents).where(where).values(ranks=list(ranks), **values))
        await self.connection.execute(delete(t.incident_ranks).where(t.incident_ranks.c.incident_id == incident_id))
        await self._index_ranks(incident_id, ranks)

    async def _index_ranks(self, incident_id: str, ranks: Sequence[int]) -> None:
        concerned = [{"incident_id": incident_id, "rank": rank} for rank in sorted(set(ranks))]
        if concerned:
            await self.connection.execute(insert(t.incident_ranks), concerned)

    async def add_reconfiguration(self, record: ReconfigurationRecord) -> None:
        values = asdict(record) | {"status": str(record.status), "alternatives": list(record.alternatives)}
        await self.connection.execute(insert(t.reconfigurations).values(**values))

    async def set_reconfiguration(self, reconfiguration_id: str, **values: Any) -> None:
        where = t.reconfigurations.c.id == reconfiguration_id
        await self.connection.execute(update(t.reconfigurations).where(where).values(**values))

    async def add_ack(self, ack: AckRecord) -> None:
        await self.connection.execute(self.upsert(t.acks).values(**asdict(ack)).on_conflict_do_nothing())

    async def put_iterations(self, rows: Sequence[IterationRecord]) -> None:
        """Insert or complete summaries: a report of another node may raise `step_s` and `rss_bytes` or add the loss."""
        if not rows:
            return
        greatest = func.max if self.connection.dialect.name == "sqlite" else func.greatest
        statement = self.upsert(t.iterations)
        old, new = t.iterations.c, statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=["job", "iteration"],
            set_={
                "epoch": greatest(old.epoch, new.epoch),
                "step_s": greatest(old.step_s, new.step_s),
                "loss": func.coalesce(new.loss, old.loss),
                "rss_bytes": greatest(func.coalesce(old.rss_bytes, 0), func.coalesce(new.rss_bytes, 0)),
            },
        )
        await self.connection.execute(statement, [asdict(row) for row in rows])

    async def set_committed(self, job: str, committed: int) -> None:
        """Raise the job's count of committed iterations."""
        where = (t.jobs.c.job == job, t.jobs.c.committed < committed)
        await self.connection.execute(update(t.jobs).where(*where).values(committed=committed))
