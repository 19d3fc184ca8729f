"""`python -m resihp_detector` against a real server: slow devices exactly once, whoever is killed when."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from resihp_bus import JetStreamBus, LocalNats
from resihp_messages import AnyEnvelope, Kind, event
from support.plans import demo_plan
from support.processes import running
from support.telemetry import PlayedJob
from support.waiting import PATIENCE

FAULTS = {40: (5, 0.5), 90: (2, 0.7), 140: (7, 0.83), 190: (0, 0.5), 240: (3, 0.6)}
"""Iteration -> rank and speed; each for 35 iterations."""
LAST = 300


@contextlib.contextmanager
def detector(server: LocalNats, folder: Path, **variables: object):  # type: ignore[no-untyped-def]
    values: dict[str, object] = {
        "RESIHP_BUS_URL": server.url,
        "RESIHP_BUS_ACK_WAIT_S": 0.5,
        "RESIHP_DETECTOR_SNAPSHOT_PERIOD_S": 0.2,
        **variables,
    }
    with running("resihp_detector", folder, **values) as service:
        yield service


async def stored(bus: JetStreamBus, kind: Kind) -> AsyncIterator[AnyEnvelope]:
    last = await bus.last_sequence(kind)
    if not last:
        return
    async with contextlib.aclosing(bus.replay(kind, after_sequence=0)) as messages:
        async for message in messages:
            yield message.envelope
            if message.sequence >= last:
                return


async def verdicts(bus: JetStreamBus) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    async for envelope in stored(bus, Kind.EVENT):
        body = envelope.body
        if isinstance(body, event._FailureEvent) and not isinstance(body, event.DeviceSuspected):
            found[type(body).__name__, body.verdict.ranks[0]] += 1
    return found


async def play(job: PlayedJob, bus: JetStreamBus, iterations: int) -> None:
    for _ in range(iterations):
        coming = job.iteration + 1
        job.speed = {rank: p for start, (rank, p) in FAULTS.items() if start <= coming < start + 35}
        await job.publish(bus, job.next_iteration())


async def test_a_slow_device_is_said_by_a_real_process_and_what_it_learned_survives(
    nats_server: LocalNats, nats_bus: JetStreamBus, tmp_path: Path
) -> None:
    job = PlayedJob(demo_plan())
    await job.announce(nats_bus)
    await play(job, nats_bus, 30)
    with detector(nats_server, tmp_path / "one") as service:
        await service.ready()
        await wait_for_kept(nats_bus)
        service.kill()
    await play(job, nats_bus, 20)
    with detector(nats_server, tmp_path / "two") as service:
        await service.ready()
        await until(nats_bus, Counter({("DeviceSlow", 5): 1}))
        scores = await scores_until(nats_bus, 50)
        assert await service.stop() == 0
    assert scores[-1].p[5] == pytest.approx(0.5, rel=0.05)  # type: ignore[attr-defined]


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_five_faults_are_said_once_each_across_twenty_sigkills(
    nats_server: LocalNats, nats_bus: JetStreamBus, tmp_path: Path
) -> None:
    rng, job = random.Random(11), PlayedJob(demo_plan())
    await job.announce(nats_bus)
    for life in range(20):
        with detector(nats_server, tmp_path / f"d{life}") as service:
            await asyncio.gather(service.ready(), _play_slowly(job, nats_bus, LAST // 20))
            await asyncio.sleep(rng.uniform(0.0, 0.5))  # the moment of the kill is random on purpose
            service.kill()
    wanted = Counter({(kind, rank): 1 for rank, _ in FAULTS.values() for kind in ("DeviceSlow", "DeviceRecovered")})
    with detector(nats_server, tmp_path / "last") as service:
        await service.ready()
        await until(nats_bus, wanted, 30.0 * PATIENCE)
        assert await service.stop() == 0
    assert await verdicts(nats_bus) == wanted
    slow = [e async for e in stored(nats_bus, Kind.EVENT) if isinstance(e.body, event.DeviceSlow)]
    for envelope in slow:
        (rank,), evidence = envelope.body.verdict.ranks, envelope.body.evidence  # type: ignore[attr-defined]
        start, p = next((start, p) for start, (r, p) in FAULTS.items() if r == rank)
        assert start - 1 <= evidence["first_iteration"] <= start + 1
        assert evidence["iteration"] <= start + 6
        assert envelope.body.verdict.p == pytest.approx(p, rel=0.05)  # type: ignore[attr-defined]


async def _play_slowly(job: PlayedJob, bus: JetStreamBus, iterations: int) -> None:
    for _ in range(iterations):
        await play(job, bus, 1)
        await asyncio.sleep(0.1)  # the pace of a job


async def wait_for_kept(bus: JetStreamBus) -> None:
    async with asyncio.timeout(120):
        while True:
            if await bus.kept("detector-0-of-1") is not None:
                return
            await asyncio.sleep(0.1)


async def scores_until(bus: JetStreamBus, iteration: int) -> list[object]:
    """All scores, once there is one of `iteration`: an event is said before the iterations after it are scored."""
    async with asyncio.timeout(20 * PATIENCE):
        while True:
            scores = [envelope.body async for envelope in stored(bus, Kind.SCORE)]
            if scores and scores[-1].iteration >= iteration:  # type: ignore[attr-defined]
                return scores
            await asyncio.sleep(0.2)


async def until(bus: JetStreamBus, wanted: Counter[tuple[str, int]], timeout_s: float = 20.0 * PATIENCE) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if await verdicts(bus) == wanted:
                return
            await asyncio.sleep(0.2)
