"""An agent without workers: it obeys commands, keeps the fencing rules, and says what the script lets it say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from resihp_bus import Ack, Bus, Outcome, Subscription
from resihp_messages import FLEET, AnyEnvelope, Body, Envelope, JobSpec, Kind, ack, command, event, new_id
from resihp_messages.event import Verdict
from resihp_messages.report import IterationReport
from resihp_messages.request import Reply
from resihp_plan import ParallelPlan


async def say(bus: Bus, body: Body, *, job: str, detail: str, source: str, **more: Any) -> AnyEnvelope:
    """Publish one message and return it."""
    incarnation = more.pop("incarnation", "test")
    envelope = Envelope[Body].of(body, job=job, source=source, incarnation=incarnation, **more)
    await bus.publish(envelope, detail=detail)
    return envelope


async def ask(bus: Bus, body: Body, *, job: str, message_id: str | None = None) -> Reply:
    """Send a request to the scheduler."""
    envelope = Envelope[Body].of(body, job=job, source="test", incarnation="test", message_id=message_id)
    verb = type(body).schema_name.partition(".")[0]
    answer = (await bus.request(envelope, detail=verb, timeout_s=10.0)).body
    assert isinstance(answer, Reply)
    return answer


async def declare(
    bus: Bus,
    ranks: Iterable[int],
    *,
    node: str,
    job: str = "demo",
    kind: type[event._FailureEvent] = event.WorkerLost,
    epoch: int = 1,
    message_id: str | None = None,
    **evidence: Any,
) -> AnyEnvelope:
    """A verdict, as the detector would publish it."""
    name = kind.schema_name.partition(".")[0]
    fault: Any = "link_broken" if kind is event.LinkLost else re.sub("(?<!^)(?=[A-Z])", "_", name).lower()
    verdict = Verdict(fault=fault, ranks=tuple(ranks), node=node, p=0.0, confidence=1.0)
    body = kind(evidence={"detect_s": 0.004, **evidence}, verdict=verdict, advice="exclude")
    return await say(bus, body, job=job, detail=name, source="detector", epoch=epoch, message_id=message_id or new_id())


@dataclass
class ScriptedAgent:
    """One node. `obeyed` and `refused` hold every command; switches choose what is not acknowledged."""

    bus: Bus
    node: str
    num_slots: int = 4
    incarnation: str = field(default_factory=new_id)
    starts: bool = True
    """Acknowledge StartWorkers."""
    installs: bool = True
    """Acknowledge plans as applied."""
    resumes: bool = True
    """Acknowledge the first iteration of an epoch."""
    refuses: str = ""
    """Refuse every plan, with this reason."""
    obeyed: list[AnyEnvelope] = field(default_factory=list)
    refused: list[AnyEnvelope] = field(default_factory=list)
    ranks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    token: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    committed: int = 0
    _commands: Subscription = field(init=False)

    async def join(self) -> ScriptedAgent:
        self._commands = await self.bus.consume(f"agent-{self.node}", Kind.COMMAND, self._obey, detail=self.node)
        body = event.NodeJoined(
            node=self.node,
            host="localhost",
            comm_host="127.0.0.1",
            num_slots=self.num_slots,
            store_address=f"127.0.0.1:{len(self.node)}",
        )
        await self.say(body, job=FLEET, detail="NodeJoined")
        return self

    async def crash(self) -> None:
        """Hear nothing any more."""
        await self._commands.stop()

    async def say(self, body: Body, *, job: str, detail: str | None = None, epoch: int = 0) -> AnyEnvelope:
        return await say(
            self.bus,
            body,
            job=job,
            detail=detail or self.node,
            source=f"agent-{self.node}",
            incarnation=self.incarnation,
            epoch=epoch,
        )

    def commands(self, kind: type[Body]) -> list[AnyEnvelope]:
        return [envelope for envelope in self.obeyed if isinstance(envelope.body, kind)]

    @property
    def plans(self) -> list[command.ApplyPlan]:
        return [e.body for e in self.obeyed if isinstance(e.body, command.ApplyPlan)]

    async def _obey(self, envelope: AnyEnvelope) -> Outcome:
        body = envelope.body
        assert isinstance(body, command._Command)
        stale = isinstance(body, command.ApplyPlan) and envelope.epoch <= self.epochs.get(envelope.job, 0)
        if body.token < self.token or body.agent_incarnation not in ("", self.incarnation) or stale:
            self.refused.append(envelope)
            return Ack()
        self.token = body.token
        self.obeyed.append(envelope)
        if isinstance(body, command.StartWorkers):
            self.ranks[envelope.job] = tuple(sorted({*self.ranks.get(envelope.job, ()), *body.ranks}))
            if self.starts:
                await self.started(envelope.job, body.ranks)
        elif isinstance(body, command.ApplyPlan):
            self.epochs[envelope.job] = envelope.epoch
            await self._apply(envelope, body)
        return Ack()

    async def started(self, job: str, ranks: tuple[int, ...] | None = None) -> None:
        ranks = self.ranks[job] if ranks is None else ranks
        pids = tuple(10_000 + rank for rank in ranks)
        await self.say(ack.WorkersStarted(node=self.node, ranks=ranks, pids=pids), job=job)

    async def _apply(self, envelope: AnyEnvelope, body: command.ApplyPlan) -> None:
        if self.refuses:
            refusal = ack.PlanRejected(node=self.node, reconfiguration_id=body.reconfiguration_id, reason=self.refuses)
            await self.say(refusal, job=envelope.job, epoch=envelope.epoch)
            return
        if body.mode == "planned":
            held = ack.PlanPrepared(
                node=self.node,
                reconfiguration_id=body.reconfiguration_id,
                digest=body.digest,
                ranks=self._members(envelope.job, body),
            )
            await self.say(held, job=envelope.job, epoch=envelope.epoch)
        if self.installs:
            await self.install(envelope)
        if self.resumes and self.installs:
            await self.resume(envelope)

    def _members(self, job: str, body: command.ApplyPlan) -> tuple[int, ...]:
        world = ParallelPlan.from_dict(body.plan).world
        return tuple(rank for rank in self.ranks[job] if rank in world)

    async def install(self, envelope: AnyEnvelope, **changes: Any) -> None:
        """Say that a plan is applied here."""
        body = envelope.body
        assert isinstance(body, command.ApplyPlan)
        ranks = self._members(envelope.job, body)
        values: dict[str, Any] = {
            "abort_s": tuple(0.01 for _ in ranks),
            "rebuild_s": tuple(0.02 + 0.001 * rank for rank in ranks),
            "move_s": tuple(0.005 for _ in ranks),
            "bytes_received": tuple(100 for _ in ranks),
            "committed": self.committed,
            "digests_equal": True,
            "plan_s": 0.003,
        }
        applied = ack.PlanApplied(
            node=self.node,
            reconfiguration_id=body.reconfiguration_id,
            digest=body.digest,
            ranks=ranks,
            **values | changes,
        )
        await self.say(applied, job=envelope.job, epoch=envelope.epoch)

    async def resume(self, envelope: AnyEnvelope) -> None:
        """Say that the first iteration of a plan is committed here."""
        body = envelope.body
        assert isinstance(body, command.ApplyPlan)
        ranks = self._members(envelope.job, body)
        self.committed += 1
        resumed = ack.IterationResumed(
            node=self.node,
            reconfiguration_id=body.reconfiguration_id,
            iteration=self.committed,
            ranks=ranks,
            redo_s=tuple(0.05 for _ in ranks),
            since_notice_s=0.1,
            samples_expected=16,
            samples_once=16,
        )
        await self.say(resumed, job=envelope.job, epoch=envelope.epoch)

    async def report(self, job: str, iteration: int, *, epoch: int = 1, step_s: float = 0.5) -> None:
        """One committed iteration of this node's ranks."""
        ranks = self.ranks[job]
        same = tuple(0.1 for _ in ranks)
        body = IterationReport(
            node=self.node,
            iteration=iteration,
            ranks=ranks,
            step_s=tuple(step_s for _ in ranks),
            forward_s=same,
            backward_s=same,
            tp_wait_s=same,
            pp_wait_s=same,
            dp_wait_s=same,
            tokens=tuple(64 for _ in ranks),
            sum_sq_len=tuple(64 for _ in ranks),
            rss_bytes=tuple(1000 + rank for rank in ranks),
            loss=5.0 / iteration,
            global_tokens=1024,
            samples_expected=16,
            samples_once=16,
        )
        await self.say(body, job=job, epoch=epoch)

    async def finish(self, job: str, ranks: Iterable[int] | None = None, *, epoch: int = 1) -> None:
        """These ranks (default: all of the node) have committed the last iteration."""
        for rank in self.ranks[job] if ranks is None else ranks:
            body = ack.WorkerFinished(
                node=self.node,
                rank=rank,
                committed=40,
                samples_expected=640,
                samples_once=640,
                final_loss=1.25,
                peak_rss_bytes=1 << 20,
            )
            await self.say(body, job=job, epoch=epoch)


def small_spec(**changes: Any) -> JobSpec:
    """TP 2 x PP 2 x DP 2 of the default small model."""
    return JobSpec.model_validate(changes)
