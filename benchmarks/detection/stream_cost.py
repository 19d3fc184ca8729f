"""What the detector costs with everything on the way: the stream of a real server, decoding, judging, scores.

10,240 devices (DP 320 x PP 4 x TP 8) on 1,280 nodes. Their reports are stored first, then read at full speed by the
product's own reader; CPU seconds are those of this process and of the server while it reads.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import psutil

from resihp_bus import JetStreamBus, JetStreamSettings, LocalNats
from resihp_chassis import SystemClock
from resihp_detect.healthy_time import prepare
from resihp_detector.settings import DetectorSettings
from resihp_detector.verdicts import Conclusion
from resihp_detector.watch import HealthWatch
from resihp_messages import AnyEnvelope, Body, JobSpec, Kind, ModelConfig, ParallelConfig, command
from resihp_messages.report import IterationReport
from resihp_plan import ParallelPlan, ReplicaPlan, StagePlan

Floats = npt.NDArray[np.float64]
JOB, RUN = "large", "r1"
TP, PP = 8, 4
WARM_UP = 24


@dataclass(frozen=True)
class StreamCost:
    """Of one run. CPU seconds per iteration of the whole job."""

    devices: int
    messages: int
    report_bytes: int
    detector_s: float
    server_s: float
    bytes_per_device: float
    """Growth of the process's resident set over the job, libraries loaded before."""
    kept_bytes_per_device: float
    """Size of a snapshot."""

    @property
    def records_per_s(self) -> float:
        """Device-records per second of one core: detector only."""
        return self.devices / self.detector_s


def measure(dp: int, iterations: int, rng: np.random.Generator) -> StreamCost:
    """Runs a server of its own. Raises `ServerError` without a nats-server."""
    with tempfile.TemporaryDirectory() as folder, LocalNats(folder) as server:
        return asyncio.run(_measure(server, dp, iterations, rng))


async def _measure(server: LocalNats, dp: int, iterations: int, rng: np.random.Generator) -> StreamCost:
    bus = JetStreamBus(JetStreamSettings(url=server.url), "detector")
    await bus.connect()
    model = ModelConfig(num_kv_heads=8, ffn_hidden=384)  # shares that are equal: so are the seconds below
    plan, spec = _plan(dp), JobSpec(name=JOB, model=model, parallel=ParallelConfig(tp=TP, pp=PP))
    await _announce(bus, plan, spec)
    size = 0
    for i in range(1, WARM_UP + 1):
        size = await _store(bus, plan, i, rng)
    prepare()
    before = psutil.Process().memory_info().rss
    said: list[Conclusion] = []

    async def say(conclusion: Conclusion) -> None:
        said.append(conclusion)

    watch = HealthWatch(DetectorSettings(snapshot_period_s=3600.0), bus, SystemClock(), say, _wrap)
    await _read(watch, bus)
    grown = psutil.Process().memory_info().rss - before
    for i in range(WARM_UP + 1, WARM_UP + iterations + 1):
        await _store(bus, plan, i, rng)
    process = psutil.Process(server.pid)
    own, theirs = time.process_time(), sum(process.cpu_times()[:2])
    await _read(watch, bus)
    detector_s = (time.process_time() - own) / iterations
    server_s = (sum(process.cpu_times()[:2]) - theirs) / iterations
    await watch.keep()
    kept = await bus.kept("detector-0-of-1")
    await bus.close()
    devices = len(plan.active)
    alarms = [c for c in said if "slow" in c.body.verdict.fault]
    if alarms or kept is None:
        raise ValueError(f"healthy devices raised {len(alarms)} alarms, or nothing was kept")
    return StreamCost(devices, devices // TP, size, detector_s, server_s, grown / devices, len(kept) / devices)


async def _read(watch: HealthWatch, bus: JetStreamBus) -> None:
    """Everything that is stored now."""
    last = await bus.last_sequence(Kind.REPORT)
    reading = asyncio.create_task(watch.run())
    while True:
        await asyncio.sleep(0.05)
        if watch.position >= last:
            break
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def _plan(dp: int) -> ParallelPlan:
    def stage(r: int, s: int) -> StagePlan:
        first = (r * PP + s) * TP
        return StagePlan(2 * s, 2 * s + 2, tuple(range(first, first + TP)), (1,) * TP)

    return ParallelPlan(1, tuple(ReplicaPlan(tuple(stage(r, s) for s in range(PP)), 8) for r in range(dp)))


async def _announce(bus: JetStreamBus, plan: ParallelPlan, spec: JobSpec) -> None:
    common = {"node": "n0", "token": 1}
    await _publish(bus, command.StartWorkers(**common, ranks=(0,), spec=spec))
    order = command.ApplyPlan(
        **common,
        mode="initial",
        reconfiguration_id=RUN,
        plan=plan.to_dict(),
        digest=plan.digest,
        store_address="127.0.0.1:1",
    )
    await _publish(bus, order)


async def _publish(bus: JetStreamBus, body: Body) -> None:
    await bus.publish(_wrap(body), detail="n0")


async def _store(bus: JetStreamBus, plan: ParallelPlan, iteration: int, rng: np.random.Generator) -> int:
    """One iteration of every node; returns the bytes of a report."""
    last, size = await bus.last_sequence(Kind.REPORT), 0
    for replica in plan.replicas:
        lengths = rng.dirichlet(np.ones(6), 8) * 8192.0
        tokens, squares = int(lengths.sum()), int((lengths**2).sum())
        healthy_s = 0.02 + 4e-7 * tokens + 2e-11 * squares
        for stage in replica.stages:
            noise = np.exp(rng.normal(0.0, 0.02, (2, TP)))
            body = _report(stage, iteration, tokens, squares, healthy_s * noise)
            bus.publish_soon(_wrap(body), detail=body.node)
            size = size or len(body.model_dump_json())
        await asyncio.sleep(0)
    while True:
        if await bus.last_sequence(Kind.REPORT) >= last + len(plan.active) // TP:
            return size
        await asyncio.sleep(0.02)


def _report(
    stage: StagePlan,
    iteration: int,
    tokens: int,
    squares: int,
    seconds: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> IterationReport:
    zeros, units = (0.0,) * TP, ((tokens // 8,) * 8,) * TP
    return IterationReport(
        node=f"n{stage.ranks[0] // TP}",
        iteration=iteration,
        ranks=stage.ranks,
        step_s=(1.0,) * TP,
        forward_s=tuple(map(float, seconds[0])),
        backward_s=tuple(map(float, 2.0 * seconds[1])),
        tp_wait_s=zeros,
        pp_wait_s=zeros,
        dp_wait_s=zeros,
        tokens=(tokens,) * TP,
        sum_sq_len=(squares,) * TP,
        rss_bytes=(1 << 30,) * TP,
        loss=2.5,
        global_tokens=tokens,
        samples_expected=48,
        samples_once=48,
        unit_tokens=units,
        unit_sum_sq_len=((squares // 8,) * 8,) * TP,
        unit_forward_s=((0.01,) * 8,) * TP,
        unit_backward_s=((0.02,) * 8,) * TP,
        reconfiguration_id=RUN,
    )


def _wrap(body: Body, *, job: str = JOB, epoch: int = 1, message_id: str | None = None) -> AnyEnvelope:
    return AnyEnvelope.of(
        body, job=job, source="bench", incarnation=f"p{os.getpid()}", epoch=epoch, message_id=message_id
    )
