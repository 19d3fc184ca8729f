"""`python -m resihp_detector` against a real server: verdicts exactly once, whoever is killed when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest_asyncio

from resihp_bus import JetStreamBus, LocalNats
from resihp_messages import FLEET, AnyEnvelope, Kind, event
from support.detection import FailureEvent, Surroundings, exited
from support.processes import ServiceProcess, running
from support.waiting import wait_for


@pytest_asyncio.fixture
async def world(nats_bus: JetStreamBus) -> Surroundings:
    world = Surroundings(nats_bus)
    await world.start()
    return world


@contextlib.contextmanager
def detector(server: LocalNats, folder: Path, **variables: object) -> Iterator[ServiceProcess]:
    values: dict[str, object] = {
        "RESIHP_BUS_URL": server.url,
        "RESIHP_BUS_ACK_WAIT_S": 0.5,
        "RESIHP_BUS_RECONNECT_WAIT_S": 0.05,
        "RESIHP_DETECTOR_NODE_S": 1.0,
        "RESIHP_DETECTOR_CONFIRM_S": 0.2,
        **variables,
    }
    with running("resihp_detector", folder, **values) as service:
        yield service


async def stored_verdicts(bus: JetStreamBus) -> list[AnyEnvelope]:
    last, found = await bus.last_sequence(Kind.EVENT), []
    async with contextlib.aclosing(bus.replay(Kind.EVENT, after_sequence=0)) as messages:
        async for message in messages:
            if isinstance(message.envelope.body, FailureEvent):
                found.append(message.envelope)
            if message.sequence >= last:
                return found
    return found


async def test_one_verdict_per_fault_across_sigkills(
    world: Surroundings, nats_server: LocalNats, nats_bus: JetStreamBus, tmp_path: Path
) -> None:
    """Thirty deaths while the detector is killed five times, at no particular moment."""
    for round_number in range(5):
        with detector(nats_server, tmp_path / "d") as service:
            for rank in range(6 * round_number, 6 * round_number + 6):
                await world.say(exited(rank))
            wanted = 6 * round_number + 3
            await wait_for(lambda wanted=wanted: len(world.of(event.WorkerLost)) >= wanted, 20.0)
            service.kill()
    with detector(nats_server, tmp_path / "last") as service:
        await service.ready()  # earlier, SIGTERM would end it without its handler
        await wait_for(lambda: len(world.of(event.WorkerLost)) == 30, 20.0)
        assert await service.stop() == 0
    stored = await stored_verdicts(nats_bus)
    ranks = sorted(e.body.verdict.ranks[0] for e in stored if isinstance(e.body, event.WorkerLost))
    assert ranks == list(range(30))
    assert len({e.message_id for e in stored}) == 30


async def test_a_node_that_dies_together_with_the_detector_is_lost_once(
    world: Surroundings, nats_server: LocalNats, nats_bus: JetStreamBus, tmp_path: Path
) -> None:
    await world.join("n0", "n0-a1")
    await world.started(0, 1, incarnation="n0-a1")
    with detector(nats_server, tmp_path / "d") as service:
        await service.ready()
        for _ in range(12):
            await world.beat(0, 1, incarnation="n0-a1")
        service.kill()
    with detector(nats_server, tmp_path / "d") as service:
        await wait_for(lambda: len(world.of(event.NodeLost)) == 2, 20.0)
        service.kill()
    with detector(nats_server, tmp_path / "d") as service:
        await service.ready()
        await world.join("n0", "n0-a2")
        await world.say(exited(5, node="n0"))
        await wait_for(lambda: world.of(event.WorkerLost), 20.0)
    stored = await stored_verdicts(nats_bus)
    lost = [(e.job, e.body.verdict.ranks) for e in stored if isinstance(e.body, event.NodeLost)]
    assert lost == [("demo", (0, 1)), (FLEET, ())]


async def test_a_frozen_server_is_nobodys_death(world: Surroundings, nats_server: LocalNats, tmp_path: Path) -> None:
    """The server stops for longer than the bound; the nodes beat on."""
    with detector(nats_server, tmp_path / "d") as service:
        await service.ready()

        beaten = 0

        async def heart(node: str) -> None:
            nonlocal beaten
            while True:
                beaten += 1
                with contextlib.suppress(Exception):
                    await world.beat(0, node=node, incarnation=f"{node}-a1")
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            hearts = [group.create_task(heart(node)) for node in ("n0", "n1")]
            await wait_for(lambda: beaten > 40)  # enough for the detector to know what is normal
            nats_server.freeze()
            await asyncio.sleep(2.5)  # the outage
            nats_server.thaw()
            await wait_for(lambda: world.bus.connected)
            await asyncio.sleep(2.0)  # a verdict would come in this time
            assert not world.verdicts
            hearts[0].cancel()
            await wait_for(lambda: world.of(event.NodeLost), 20.0)
            hearts[1].cancel()
        assert {body.verdict.node for body in world.of(event.NodeLost)} == {"n0"}


async def test_no_server_is_one_clear_line(nats_server: LocalNats, tmp_path: Path) -> None:
    with detector(nats_server, tmp_path / "d", RESIHP_BUS_URL="nats://127.0.0.1:9") as service:
        assert await service.ended() == 2
        assert "127.0.0.1:9" in service.complaint()
    with detector(nats_server, tmp_path / "e", RESIHP_DETECTOR_NODE_S="-1") as service:
        assert await service.ended() == 2
        assert "RESIHP_DETECTOR_NODE_S" in service.complaint()
