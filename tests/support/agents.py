"""An agent in the test's own event loop, on any bus, with scripted workers, and a hand that plays the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeVar

from resihp_agent.agent import Agent
from resihp_agent.bootstrap import bootstrap
from resihp_agent.settings import AgentSettings
from resihp_bus import Bus
from resihp_messages import FLEET, AnyEnvelope, Body, DataConfig, JobSpec, Kind, TimeoutConfig, command
from resihp_plan.plan import ParallelPlan, ReplicaPlan, StagePlan
from support.processes import ServiceProcess, running
from support.scripted_zygote import COMMAND
from support.waiting import wait_for

B = TypeVar("B", bound=Body)

JOB = "demo"


def agent_settings(folder: Path, **changes: Any) -> AgentSettings:
    """Quick waits, scripted workers."""
    values: dict[str, Any] = {
        "node": "n0",
        "num_slots": 4,
        "work_dir": folder,
        "beat_period_s": 0.05,
        "watch_period_s": 0.02,
        "exit_grace_s": 3.0,
        "link_grace_s": 0.2,
        "leave_timeout_s": 2.0,
        "drain_timeout_s": 3.0,
        "zygote_command": COMMAND,
        **changes,
    }
    return AgentSettings.model_validate(values)


def job_spec(*, iterations: int = 100_000, path: str | None = None, stall_s: float = 0.5) -> JobSpec:
    """A job for scripted workers; `path` carries their script."""
    return JobSpec(
        name=JOB,
        iterations=iterations,
        data=DataConfig(path=path),
        timeouts=TimeoutConfig(stall_s=stall_s, node_s=stall_s + 1.0),
    )


def data_parallel_plan(epoch: int, ranks: tuple[int, ...], standby: tuple[int, ...] = ()) -> ParallelPlan:
    """One replica of one stage per rank."""
    replicas = tuple(ReplicaPlan((StagePlan(0, 8, (rank,), (1,)),), 1) for rank in ranks)
    return ParallelPlan(epoch, replicas, standby=standby)


@contextlib.contextmanager
def agent_process(bus_url: str, folder: Path, *, node: str = "n0", **variables: object) -> Iterator[ServiceProcess]:
    """`python -m resihp_agent` with scripted workers. `variables`: more of its environment."""
    values: dict[str, object] = {
        "RESIHP_BUS_URL": bus_url,
        "RESIHP_BUS_PUBLISH_ATTEMPT_S": 0.5,
        "RESIHP_BUS_RECONNECT_WAIT_S": 0.05,
        "RESIHP_AGENT_NODE": node,
        "RESIHP_AGENT_NUM_SLOTS": 4,
        "RESIHP_AGENT_WORK_DIR": folder / "work",
        "RESIHP_AGENT_BEAT_PERIOD_S": 0.1,
        "RESIHP_AGENT_ZYGOTE_COMMAND": json.dumps(COMMAND),
        **variables,
    }
    with running("resihp_agent", folder, **values) as service:
        yield service


class Hand:
    """Sends commands as the scheduler would and keeps everything that is said on the bus."""

    def __init__(self, bus: Bus, *, node: str = "n0") -> None:
        self.bus, self.node = bus, node
        self.heard: list[AnyEnvelope] = []
        self.store_address = "127.0.0.1:1"  # scripted workers need none

    async def start(self) -> None:
        for kind in (Kind.EVENT, Kind.ACK, Kind.REPORT, Kind.BEAT):
            await self.bus.listen(kind, self._hear)

    async def _hear(self, envelope: AnyEnvelope) -> None:
        self.heard.append(envelope)

    def all(self, body_class: type[B]) -> list[B]:
        return [envelope.body for envelope in self.heard if isinstance(envelope.body, body_class)]

    async def first(self, body_class: type[B], timeout_s: float = 10.0, **fields: Any) -> B:
        """The first message of this class with these field values."""

        def found() -> B | None:
            for body in self.all(body_class):
                if all(getattr(body, name) == value for name, value in fields.items()):
                    return body
            return None

        body = await wait_for(found, timeout_s, what=f"{body_class.__name__} {fields}")
        assert body is not None
        return body

    async def command(
        self, body: command._Command, *, epoch: int = 0, job: str = JOB, message_id: str | None = None
    ) -> None:
        envelope = AnyEnvelope.of(
            body, job=job, source="scheduler", incarnation="s1", epoch=epoch, message_id=message_id
        )
        await self.bus.publish(envelope, detail=self.node)

    async def start_workers(self, spec: JobSpec, ranks: tuple[int, ...], *, token: int = 1) -> None:
        await self.command(command.StartWorkers(node=self.node, token=token, ranks=ranks, spec=spec))

    async def apply(
        self,
        plan: ParallelPlan,
        mode: str,
        *,
        token: int = 1,
        dead: tuple[int, ...] = (),
        base: tuple[ParallelPlan, ...] = (),
    ) -> str:
        """Sends the plan; returns its reconfiguration id."""
        name = f"rc-{plan.epoch}-{token}"
        body = command.ApplyPlan(
            node=self.node,
            token=token,
            mode=mode,  # type: ignore[arg-type]
            reconfiguration_id=name,
            plan=plan.to_dict(),
            digest=plan.digest,
            base_plans=tuple(old.to_dict() for old in base),
            store_address=self.store_address,
            dead_ranks=dead,
        )
        await self.command(body, epoch=plan.epoch)
        return name

    async def event(self, body: Body, *, job: str = JOB, epoch: int = 0) -> None:
        """An event of somebody else."""
        envelope = AnyEnvelope.of(body, job=job, source="other", incarnation="o1", epoch=epoch)
        await self.bus.publish(envelope, detail=body.schema_name.partition(".")[0])


@contextlib.asynccontextmanager
async def running_agent(settings: AgentSettings, bus: Bus, *, incarnation: str = "a1") -> AsyncIterator[Agent]:
    """A serving agent; leaves in order. An error that ended it is raised."""
    agent = bootstrap(settings.model_copy(update={"incarnation": incarnation}), bus=bus, clock=time.monotonic)
    task = asyncio.get_running_loop().create_task(agent.run())
    try:
        await wait_for(lambda: agent.is_ready or task.done(), 15.0, what="agent ready")
        yield agent
    finally:
        agent.stop()
        await task


__all__ = ["FLEET", "JOB", "Hand", "agent_process", "agent_settings", "data_parallel_plan", "job_spec", "running_agent"]
