"""A gateway that serves the dashboard for a cluster of any size: real routes and database, a memory bus, and a seeded
story: one device stops, one slows down, both are answered by a change of plan."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import uvicorn

from resihp_messages import Envelope, JobSpec
from resihp_messages.event import WorkerLost
from resihp_messages.report import HealthScores, NodeBeat, WorkerBeat
from resihp_plan import CostModel, ModelSpec, Workload, describe_change
from resihp_plan.plan import ParallelPlan, ReplicaPlan, StagePlan
from resihp_plan.planner import predict
from resihp_store import DeviceState, IterationRecord, JobState, ReconfigurationStatus, Store, UnitOfWork
from support.gateway import TestGateway, open_gateway
from support.store import device, incident, node, plan_row, reconfiguration, spec
from support.waiting import wait_for

JOB = "llama-13b"
PER_NODE = 8
PHASES = {"detect": 0.031, "plan": 0.118, "abort": 0.052, "rebuild": 0.142, "move": 0.388, "redo": 0.61, "total": 1.289}
PROOF = {"layers_complete": True, "samples_once": True, "digests_equal": True, "plan_digest_equal": True}


@dataclass(frozen=True)
class Shape:
    tp: int
    pp: int
    dp: int
    layers: int

    @property
    def size(self) -> int:
        return self.tp * self.pp * self.dp

    def healthy(self) -> ParallelPlan:
        """Ranks in order: TP fastest, then stages, then replicas."""
        per_stage, extra = divmod(self.layers, self.pp)
        replicas = []
        for r in range(self.dp):
            stages, layer = [], 0
            for s in range(self.pp):
                first = (r * self.pp + s) * self.tp
                span = per_stage + (s < extra)
                stages.append(StagePlan(layer, layer + span, tuple(range(first, first + self.tp)), (1,) * self.tp))
                layer += span
            replicas.append(ReplicaPlan(tuple(stages), 8))
        return ParallelPlan(1, tuple(replicas))


SMALL, MIDDLE, LARGE = Shape(2, 2, 2, 8), Shape(4, 16, 4, 80), Shape(8, 16, 32, 80)


class Story:
    """What happened so far, and how to let more happen while somebody looks."""

    def __init__(self, shape: Shape, gateway: TestGateway) -> None:
        self.shape = shape
        self.gateway = gateway
        self.random = random.Random(7)
        self.plan = shape.healthy()
        self.lost: set[int] = set()
        self.p: dict[int, float] = {}
        self.iteration = 0
        self.sequence = 0

    @cached_property
    def spec(self) -> dict[str, Any]:
        p = {"tp": self.shape.tp, "pp": self.shape.pp, "dp": self.shape.dp}
        model = {"num_layers": max(8, self.shape.layers), "num_kv_heads": 8, "num_heads": 8}
        batch = {"micro_batches": 8 * self.shape.dp}
        return spec(name=JOB, backend="nccl", iterations=400, parallel=p, model=model, batch=batch)

    @cached_property
    def full(self) -> float:
        """Healthy throughput in tokens/s: what the cost model says, so that what-if answers fit the story."""
        known = JobSpec.model_validate(self.spec)
        model = ModelSpec(**known.model.model_dump())
        work = Workload.typical(known.batch.micro_batches, known.batch.tokens_per_micro_batch)
        return work.tokens / predict(self.shape.healthy(), work, CostModel.for_model(model)).step_s

    @asynccontextmanager
    async def work(self) -> AsyncIterator[UnitOfWork]:
        store = Store(self.gateway.database_url)
        try:
            token = await store.lease(holder="story", ttl_s=600).acquire()
            assert token is not None
            async with store.transaction(token) as work:
                yield work
        finally:
            await store.close()

    async def begin(self) -> None:
        now = datetime.now(UTC)
        async with self.work() as work:
            await work.add_job(JOB, self.spec)
            for n in range(0, self.shape.size, PER_NODE):
                await work.put_node(node(f"n{n // PER_NODE}", num_slots=PER_NODE))
            await work.add_devices(
                [device(JOB, r, node=f"n{r // PER_NODE}", slot=r % PER_NODE) for r in range(self.shape.size)]
            )
            await self._issue(work, now - timedelta(minutes=9), mode="initial")
            await work.set_job(JOB, JobState.RUNNING)
        await self.train(120)

    async def train(self, count: int) -> None:
        """Commit iterations at the speed that is left."""
        rows = []
        for _ in range(count):
            self.iteration += 1
            share = sum(self.p.get(r, 1.0) for r in self.plan.world) / self.shape.size
            speed = share * (1.0 if self.plan.epoch == 1 else 0.97)  # an uneven layout is a little below its bound
            step_s = 1.0 / speed * self.random.gauss(1.0, 0.012) * (0.985 + 0.03 * (self.iteration % 7 == 0))
            tokens = round(self.full)
            rows.append(
                IterationRecord(
                    JOB, self.iteration, self.plan.epoch, 11 * self.iteration**-0.28, step_s, tokens, 64, 64
                )
            )
        async with self.work() as work:
            await work.put_iterations(rows)
            await work.set_committed(JOB, self.iteration)

    async def stop_device(self, rank: int, *, closed: bool = True) -> None:
        """A device stops; the event first, then what the scheduler writes."""
        verdict = {
            "fault": "worker_lost",
            "ranks": (rank,),
            "node": f"n{rank // PER_NODE}",
            "p": 0.0,
            "confidence": 1.0,
        }
        evidence = {"exit_code": -9, "detect_s": 0.031, "iteration": self.iteration, "reporter": f"n{rank // PER_NODE}"}
        body = WorkerLost.model_validate({"evidence": evidence, "verdict": verdict, "advice": f"exclude rank {rank}"})
        await self.gateway.bus.publish(
            Envelope.of(body, job=JOB, source="detector", incarnation="d1"), detail="WorkerLost"
        )
        self.lost.add(rank)
        async with self.work() as work:
            await work.set_devices(JOB, [rank], DeviceState.LOST)
            await self._change(work, "worker_lost", rank, evidence, verdict, f"worker lost: rank {rank}", closed=closed)

    async def slow_device(self, rank: int, p: float) -> None:
        """A device slows down and the plan gives its group less work."""
        self.p[rank] = p
        await self.train(12)
        verdict = {
            "fault": "device_slow",
            "ranks": (rank,),
            "node": f"n{rank // PER_NODE}",
            "p": p,
            "confidence": 0.997,
        }
        evidence = {
            "iteration": self.iteration,
            "first_iteration": self.iteration - 6,
            "relative_time": round(1 / p, 3),
        }
        async with self.work() as work:
            await self._change(work, "device_slow", rank, evidence, verdict, f"rank {rank} at {p:.2f} of its speed")

    async def _change(
        self,
        work: UnitOfWork,
        kind: str,
        rank: int,
        evidence: Mapping[str, Any],
        verdict: Mapping[str, Any],
        reason: str,
        *,
        closed: bool = True,
    ) -> None:
        now = datetime.now(UTC)
        number = self.plan.epoch
        await work.add_incident(
            incident(
                JOB,
                f"i{number}",
                kind=kind,
                ranks=(rank,),
                node=f"n{rank // PER_NODE}",
                evidence=dict(evidence),
                verdict={**verdict, "ranks": [rank]},
                advice="exclude the device" if kind == "worker_lost" else "give it less work",
                opened_at=now,
                closed_at=now if closed else None,
            )
        )
        self.plan = without(self.plan, rank) if kind == "worker_lost" else lighter(self.plan, rank)
        mode = "recovery" if kind == "worker_lost" else "planned"
        await self._issue(work, now, mode=mode, incident_id=f"i{number}", reason=reason, rank=rank)

    async def _issue(
        self, work: UnitOfWork, at: datetime, *, mode: str, reason: str = "initial plan", **more: Any
    ) -> None:
        plan, before = self.plan, getattr(self, "_before", None)
        rank = more.pop("rank", None)
        full = self.full
        share = sum(self.p.get(r, 1.0) for r in plan.world) / self.shape.size
        await work.add_plan(
            plan_row(JOB, plan.epoch, digest=plan.digest, plan=plan.to_dict(), created_at=at, installed_at=at)
        )
        difference = describe_change(before, plan) if before else ""
        await work.add_reconfiguration(
            reconfiguration(
                JOB,
                f"c{plan.epoch:02}{'af31e' * 3}",
                mode=mode,
                status=ReconfigurationStatus.APPLIED,
                old_epoch=plan.epoch - 1,
                new_epoch=plan.epoch,
                old_digest=before.digest if before else "",
                new_digest=plan.digest,
                reason=reason,
                difference=difference,
                alternatives=alternatives(full * share) if rank is not None else (),
                phases_s={} if mode == "initial" else phases(mode, self.random),
                proof=PROOF,
                bytes_moved=None if mode == "initial" else 1_840_000_000,
                bound_tokens_per_s=full * share,
                predicted_by="constants",
                speed_share=share,
                predicted_tokens_per_s=full * share * 0.985,
                achieved_tokens_per_s=full * share * self.random.uniform(0.955, 0.985),
                created_at=at,
                applied_at=at,
                **more,
            )
        )
        self._before = plan

    async def keep_beating(self, every_s: float = 2.0) -> None:
        """Until cancelled: devices without beats would soon be shown as unknown."""
        while True:
            await asyncio.sleep(every_s)
            await self.beat()

    async def beat(self) -> None:
        """Every node says that its workers train, the detector how fast they are."""
        self.sequence += 1
        world = set(self.plan.world)
        for n in range(0, self.shape.size, PER_NODE):
            workers = tuple(
                WorkerBeat(
                    job=JOB,
                    rank=r,
                    pid=1000 + r,
                    state="training",
                    epoch=self.plan.epoch,
                    iteration=self.iteration,
                    ops=1,
                    silent_s=0.01,
                )
                for r in range(n, min(n + PER_NODE, self.shape.size))
                if r in world
            )
            body = NodeBeat(
                node=f"n{n // PER_NODE}", sequence=self.sequence, period_s=0.25, host="host", comm_host="127.0.0.1",
                num_slots=PER_NODE, store_address="127.0.0.1:1", workers=workers,
            )  # fmt: skip
            await self.gateway.gateway.beats.hear(Envelope.of(body, job="_fleet", source="agent", incarnation=f"a{n}"))
        ranks = tuple(sorted(world))
        p = tuple(min(1.0, self.p.get(r, 1.0) * self.random.gauss(0.985, 0.006)) for r in ranks)
        scores = HealthScores(iteration=self.iteration, ranks=ranks, p=p)
        self.gateway.gateway.health.note(JOB, datetime.now(UTC), scores)


def without(plan: ParallelPlan, rank: int) -> ParallelPlan:
    """The rank's group goes on with one device less; one micro-batch moves to the next replica."""
    place = plan.position(rank)
    assert place is not None
    r, s, t = place
    stage = plan.replicas[r].stages[s]
    kept = replace(
        stage, ranks=stage.ranks[:t] + stage.ranks[t + 1 :], weights=stage.weights[:t] + stage.weights[t + 1 :]
    )
    return _with_stage(plan, r, s, kept)


def lighter(plan: ParallelPlan, rank: int) -> ParallelPlan:
    """The rank's stage gives a layer to its neighbour, the rank a share of what is left to its group."""
    place = plan.position(rank)
    assert place is not None
    r, s, t = place
    stages = list(plan.replicas[r].stages)
    stage, other = stages[s], s + 1 if s + 1 < len(stages) else s - 1
    weights = tuple(1 if n == t else 2 for n in range(len(stage.ranks)))
    if other > s:
        stages[s] = replace(stage, layer_stop=stage.layer_stop - 1, weights=weights)
        stages[other] = replace(stages[other], layer_start=stages[other].layer_start - 1)
    else:
        stages[s] = replace(stage, layer_start=stage.layer_start + 1, weights=weights)
        stages[other] = replace(stages[other], layer_stop=stages[other].layer_stop + 1)
    replicas = list(plan.replicas)
    replicas[r] = replace(replicas[r], stages=tuple(stages))
    return replace(plan, epoch=plan.epoch + 1, replicas=tuple(replicas))


def _with_stage(plan: ParallelPlan, r: int, s: int, stage: StagePlan) -> ParallelPlan:
    replicas = list(plan.replicas)
    stages = list(replicas[r].stages)
    stages[s] = stage
    replicas[r] = ReplicaPlan(tuple(stages), replicas[r].num_micro_batches - 1)
    other = (r + 1) % len(replicas)
    replicas[other] = replace(replicas[other], num_micro_batches=replicas[other].num_micro_batches + 1)
    return replace(plan, epoch=plan.epoch + 1, replicas=tuple(replicas))


def phases(mode: str, rng: random.Random) -> dict[str, float]:
    found = {k: v * rng.uniform(0.75, 1.3) for k, v in PHASES.items() if k != "total"}
    if mode == "planned":
        found |= {"detect": 0.0, "abort": 0.0}
    return {**found, "total": sum(v for k, v in found.items() if k != "abort")}


def alternatives(best: float) -> tuple[Mapping[str, Any], ...]:
    rows = (
        ("power-of-two TP", "TP 4 -> 2", 0.951, 3_100_000_000, "slower: half of the group stands by"),
        ("drop the replica", "R1 dropped", 0.762, 0, "slower: all its healthy devices idle"),
        ("nothing", "same layout", 0.5, 0, "the group waits for its slowest member"),
    )
    return tuple(
        {"name": n, "difference": d, "predicted_tokens_per_s": best * f, "bytes_moved": b, "reason": why}
        for n, d, f, b, why in rows
    )


class Server:
    """The app on a real socket; it can be stopped and started again on the same port."""

    def __init__(self, gateway: TestGateway) -> None:
        self._gateway = gateway
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._gateway.gateway.closing.clear()
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._gateway.app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        started = self._server
        await wait_for(lambda: started.started, 10)

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._gateway.gateway.closing.set()
            self._server.should_exit = True
            await self._serving
            self._server = None


@asynccontextmanager
async def dashboard(folder: Path, shape: Shape, *, told: bool = True) -> AsyncIterator[tuple[Server, Story]]:
    """A running gateway and its story; `told`: with a stopped and a slow device already in the past."""
    async with open_gateway(folder, seeded=False, heartbeat_s=1.0) as gateway:
        story = Story(shape, gateway)
        await story.begin()
        if told:
            n = shape.size
            await story.stop_device(n // 3 + 1)
            await story.train(60)
            await story.slow_device(n - n // 4 - 1, 0.62)
            await story.train(70)
        await story.beat()
        server = Server(gateway)
        await server.start()
        beating = asyncio.create_task(story.keep_beating())
        try:
            yield server, story
        finally:
            beating.cancel()
            await asyncio.wait({beating})
            await server.stop()
