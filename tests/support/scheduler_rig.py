"""A scheduler in this process, on any bus and database, with scripted agents around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from resihp_bus import Bus
from resihp_chassis import Service, SystemClock
from resihp_messages import AnyEnvelope, Body, JobSpec, Kind, event
from resihp_messages.request import SubmitJob
from resihp_scheduler.bootstrap import serve
from resihp_scheduler.settings import SchedulerSettings
from resihp_store import (
    DeviceRecord,
    IncidentRecord,
    JobRecord,
    JobState,
    ReconfigurationRecord,
    Store,
    queries,
)
from support.scripted_agent import ScriptedAgent, ask
from support.waiting import wait_for

NewBus = Callable[[], Awaitable[Bus]]


@dataclass
class Rig:
    """`bus` and `store` are the test's own; schedulers get theirs from `new_bus` and `database_url`."""

    new_bus: NewBus
    database_url: str
    bus: Bus
    store: Store
    agents: dict[str, ScriptedAgent] = field(default_factory=dict)
    events: list[AnyEnvelope] = field(default_factory=list)
    """Everything published as an event, in order of arrival."""
    patience_s: float = 60.0
    """How long to wait for anything: schedulers may have to start again, on a busy machine."""

    async def watch_events(self) -> None:
        async def keep(envelope: AnyEnvelope) -> None:
            self.events.append(envelope)

        await self.bus.listen(Kind.EVENT, keep)

    async def add_agents(self, *names: str, **values: Any) -> tuple[ScriptedAgent, ...]:
        for name in names:
            self.agents[name] = await ScriptedAgent(self.bus, name, **values).join()
        return tuple(self.agents[name] for name in names)

    async def known(self, *names: str) -> None:
        """Wait until the scheduler knows these nodes."""

        async def all_known() -> bool:
            async with self.store.read() as connection:
                return set(names) <= {n.node for n in await queries.nodes(connection)}

        await wait_for(all_known, self.patience_s, what=f"nodes {names}")

    async def submit(self, spec: JobSpec) -> None:
        reply = await ask(self.bus, SubmitJob(spec=spec), job=spec.name)
        assert reply.accepted, reply.reason

    async def running(self, **changes: Any) -> JobRecord:
        """Submit a job and wait until its initial plan is applied."""
        spec = JobSpec.model_validate(changes)
        await self.submit(spec)
        await self.applied(1, job=spec.name)
        return await self.job(spec.name)

    async def job(self, name: str = "demo") -> JobRecord:
        async with self.store.read() as connection:
            record = await queries.job(connection, name)
        assert record is not None, name
        return record

    async def state(self, state: JobState, name: str = "demo") -> JobRecord:
        """Wait until the job is in `state`."""

        async def reached() -> JobRecord | None:
            async with self.store.read() as connection:
                record = await queries.job(connection, name)
            return record if record is not None and record.state is state else None

        found = await wait_for(reached, self.patience_s, what=f"job {name} {state}")
        assert found is not None
        return found

    async def devices(self, name: str = "demo") -> dict[int, DeviceRecord]:
        async with self.store.read() as connection:
            return {d.rank: d for d in await queries.devices(connection, name)}

    async def changes(self, name: str = "demo") -> tuple[ReconfigurationRecord, ...]:
        async with self.store.read() as connection:
            return await queries.reconfigurations(connection, job_name=name)

    async def incidents(self, name: str = "demo") -> tuple[IncidentRecord, ...]:
        async with self.store.read() as connection:
            return await queries.incidents(connection, job_name=name)

    async def applied(self, epoch: int, *, job: str = "demo") -> ReconfigurationRecord:
        return await self.change(epoch, "applied", job=job)

    async def change(self, epoch: int, status: str, *, job: str = "demo") -> ReconfigurationRecord:
        """Wait until the change to `epoch` has `status`."""

        async def reached() -> ReconfigurationRecord | None:
            found = [c for c in await self.changes(job) if c.new_epoch == epoch and c.status == status]
            return found[0] if found else None

        record = await wait_for(reached, self.patience_s, what=f"epoch {epoch} {status}")
        assert record is not None
        return record

    async def heard(self, kind: type[Body], count: int = 1) -> list[AnyEnvelope]:
        """Wait until `count` events of this kind were published."""

        def found() -> list[AnyEnvelope]:
            return [e for e in self.events if isinstance(e.body, kind)]

        await wait_for(lambda: len(found()) >= count, self.patience_s, what=f"{count} {kind.schema_name}")
        return found()

    async def logged(self, message_id: str) -> None:
        """Wait until the scheduler has handled this event."""

        async def found() -> bool:
            async with self.store.read() as connection:
                return message_id in [e.message_id for e in await queries.events(connection)]

        await wait_for(found, self.patience_s, what=f"event {message_id}")

    @asynccontextmanager
    async def scheduler(self, **changes: Any) -> AsyncIterator[Service[SchedulerSettings]]:
        """A running scheduler that is ready (leader or not)."""
        values: dict[str, Any] = {
            "database_url": self.database_url,
            "lease_ttl_s": 1.0,
            "lease_renew_s": 0.1,
            "planner": "thread",
            "loss_deadline_s": 20.0,
            "report_flush_s": 0.02,
            **changes,
        }
        service = Service("scheduler", SchedulerSettings(**values), SystemClock())
        bus = await self.new_bus()
        running = asyncio.create_task(serve(service, bus=bus))
        try:
            await wait_for(lambda: service.started or running.done(), self.patience_s, what="scheduler ready")
            if running.done():
                running.result()
            yield service
        finally:
            service.stop()
            await asyncio.wait_for(running, 120)

    def names(self) -> list[str]:
        """Names of the events so far."""
        return [type(e.body).schema_name.partition(".")[0] for e in self.events]


DECIDED = (
    event.JobStarted,
    event.ReconfigurationPlanned,
    event.ReconfigurationApplied,
    event.ReconfigurationRejected,
    event.ReconfigurationSuperseded,
    event.JobFinished,
    event.JobFailed,
)
