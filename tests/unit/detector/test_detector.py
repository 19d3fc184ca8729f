"""Observations and beats in, verdicts out: on a bus in memory and a clock that stands still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest_asyncio

from resihp_bus import MemoryBroker, MemoryBus
from resihp_chassis import ManualClock
from resihp_detector.detector import Detector
from resihp_detector.settings import DetectorSettings
from resihp_messages import FLEET, Kind, event
from support.detection import JOB, Surroundings, broken, exited
from support.waiting import wait_for


@dataclass
class Scene:
    broker: MemoryBroker
    clock: ManualClock
    world: Surroundings

    @contextlib.asynccontextmanager
    async def detector(
        self, incarnation: str = "d1", *, runs: bool = True, **settings: float
    ) -> AsyncIterator[Detector]:
        bus = MemoryBus(self.broker, "detector")
        await bus.connect()
        detector = Detector(DetectorSettings(**settings), bus, self.clock, incarnation=incarnation)  # type: ignore[arg-type]
        await detector.start()
        task = asyncio.create_task(detector.run()) if runs else None
        try:
            yield detector
        finally:
            if task is not None:
                task.cancel()
            await bus.close()

    async def pass_time(self, seconds: float, *beating: str, ranks: tuple[int, ...] = (0, 1)) -> None:
        """Time goes by in steps of a beat; these nodes beat."""
        for _ in range(round(seconds / 0.25)):
            await self.clock.advance(0.25)
            for node in beating:
                await self.world.beat(*ranks, node=node, incarnation=f"{node}-a1")
            await self.drained()

    async def drained(self) -> None:
        """Everything published so far is delivered and handled."""
        for _ in range(30):
            await asyncio.sleep(0)


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    broker = MemoryBroker()
    bus = MemoryBus(broker, "world")
    await bus.connect()
    world = Surroundings(bus)
    await world.start()
    yield Scene(broker, ManualClock(1000.0), world)
    await bus.close()


async def heard(scene: Scene, body_class: type, num: int = 1, *, job: str | None = None) -> list:  # type: ignore[type-arg]
    await wait_for(lambda: len(scene.world.of(body_class, job=job)) >= num, 5.0, what=body_class.__name__)
    return scene.world.of(body_class, job=job)


# --- exits ----------------------------------------------------------------------------------------------------------


async def test_an_exit_is_a_lost_worker_with_its_evidence(scene: Scene) -> None:
    async with scene.detector():
        observation = await scene.world.say(exited(3), epoch=4)
        [lost] = await heard(scene, event.WorkerLost)
        assert lost.verdict.model_dump(exclude_none=True) == {
            "fault": "worker_lost",
            "ranks": (3,),
            "node": "n0",
            "p": 0.0,
            "confidence": 1.0,
        }
        assert lost.evidence["detect_s"] == 0.004
        assert lost.evidence["exit_code"] == -9
        assert lost.evidence["signal"] == "SIGKILL"
        assert lost.evidence["pid"] == 1003
        assert lost.evidence["iteration"] == 7
        assert lost.evidence["observation"] == observation.message_id
        envelope = scene.world.verdicts[0]
        assert (envelope.job, envelope.epoch, envelope.correlation_id) == (JOB, 4, observation.message_id)


async def test_a_fenced_exit_is_a_frozen_worker(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.say(
            event.WorkerStalled(node="n0", rank=5, pid=1005, iteration=7, stalled_s=1.6, process_state="T")
        )
        await scene.world.say(exited(5, fenced=True))
        [frozen] = await heard(scene, event.WorkerFrozen)
        assert frozen.verdict.fault == "worker_frozen"
        assert (frozen.evidence["stalled_s"], frozen.evidence["process_state"]) == (1.6, "T")
        assert not scene.world.of(event.WorkerLost)


async def test_a_redelivered_observation_is_one_verdict(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.say(exited(3), message_id="same")
        await heard(scene, event.WorkerLost)
    # Its acknowledgement got lost with the process: the message comes again to the next one.
    state = scene.broker._durables[Kind.EVENT, "detector-event"]
    state.position = 0
    async with scene.detector("d2") as second:
        await scene.world.say(exited(4))
        await heard(scene, event.WorkerLost, 2)
        await wait_for(lambda: second.num_verdicts == 1)
    assert set(scene.world.counts().values()) == {1}


async def test_what_happened_while_the_detector_was_down_is_judged_afterwards(scene: Scene) -> None:
    async with scene.detector():
        pass
    await scene.world.say(exited(1))
    await scene.world.say(event.WorkerStalled(node="n0", rank=2, pid=1002, iteration=7, stalled_s=2.0))
    await scene.world.say(exited(2, fenced=True))
    async with scene.detector("d2"):
        await heard(scene, event.WorkerLost)
        [frozen] = await heard(scene, event.WorkerFrozen)
        assert frozen.evidence["stalled_s"] == 2.0


async def test_exit_without_a_code(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.say(exited(1, code=None))
        await scene.world.say(exited(2, code=1))
        lost = await heard(scene, event.WorkerLost, 2)
        assert [body.evidence["signal"] for body in lost] == [None, None]


# --- nodes ----------------------------------------------------------------------------------------------------------


async def test_a_silent_node_is_lost_with_the_ranks_of_its_last_beat(scene: Scene) -> None:
    async with scene.detector() as detector:
        await scene.world.join("n0", "n0-a1")
        await scene.world.join("n1", "n1-a1")
        await scene.pass_time(10.0, "n0", "n1")
        await scene.pass_time(4.0, "n1")
        assert not scene.world.verdicts  # 4 s is the floor
        await scene.pass_time(1.5, "n1")
        [lost] = await heard(scene, event.NodeLost, job=JOB)
        assert (lost.verdict.node, lost.verdict.ranks, lost.verdict.p) == ("n0", (0, 1), 0.0)
        assert lost.verdict.confidence > 0.99
        assert lost.evidence["cause"] == "silence"
        assert lost.evidence["incarnation"] == "n0-a1"
        assert 4.0 < lost.evidence["silence_s"] < 5.5
        assert lost.evidence["threshold_s"] == 4.0
        assert lost.evidence["phi"] > 8
        [fleet] = scene.world.of(event.NodeLost, job=FLEET)
        assert fleet.verdict.ranks == ()
        await scene.pass_time(20.0, "n1")
        assert len(scene.world.verdicts) == 2
        assert [s.node for s in detector.picture.fleet.up()] == ["n1"]


async def test_a_jobs_own_patience_replaces_the_floor(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.submitted(node_s=1.0)
        await scene.pass_time(10.0, "n0")
        await scene.pass_time(2.0)
        [lost] = await heard(scene, event.NodeLost, job=JOB)
        assert lost.evidence["threshold_s"] == 1.0


async def test_a_node_that_beats_irregularly_gets_more_time(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.submitted(node_s=1.0)
        await scene.pass_time(10.0, "n0")
        await scene.pass_time(1.0)
        await scene.pass_time(5.0, "n0")  # it came back in time: 1.25 s of silence are normal for it now
        await scene.pass_time(2.25)
        assert not scene.world.verdicts
        await scene.pass_time(1.5)
        [lost] = await heard(scene, event.NodeLost, job=JOB)
        assert lost.evidence["threshold_s"] > 2.0


async def test_a_new_incarnation_loses_the_old_workers_at_once(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.join("n0", "old")
        await scene.world.started(0, 1, incarnation="old")
        await scene.world.join("n0", "new")
        [lost] = await heard(scene, event.NodeLost, job=JOB)
        assert lost.verdict.ranks == (0, 1)
        assert lost.verdict.confidence == 1.0
        assert (lost.evidence["cause"], lost.evidence["incarnation"]) == ("new incarnation", "old")
        await scene.world.join("n0", "new")  # the same start again, with a new store
        await scene.world.beat(incarnation="old")  # a late beat
        await scene.pass_time(1.0)
        assert len(scene.world.verdicts) == 2


async def test_a_new_incarnation_may_be_heard_before_it_is_announced(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.join("n0", "old")
        await scene.world.beat(3, incarnation="old")
        await scene.world.beat(incarnation="new")
        await scene.drained()
        await scene.clock.advance(0.2)
        [lost] = await heard(scene, event.NodeLost, job=JOB)
        assert lost.verdict.ranks == (3,)


async def test_a_node_that_left_is_not_lost(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.join("n0", "n0-a1")
        await scene.pass_time(5.0, "n0")
        await scene.world.leave("n0", "n0-a1")
        await scene.pass_time(20.0)
        await scene.world.join("n0", "n0-a2")
        await scene.pass_time(1.0)
        assert not scene.world.verdicts


async def test_ranks_that_ended_are_not_lost_again(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.join("n0", "a1")
        await scene.world.started(0, 1, 2)
        await scene.world.say(exited(1))
        await heard(scene, event.WorkerLost)
        await scene.world.join("n0", "a2")
        [lost] = await heard(scene, event.NodeLost, job=JOB)
        assert lost.verdict.ranks == (0, 2)


async def test_a_finished_job_has_nothing_to_lose(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.join("n0", "a1")
        await scene.world.started(0, 1)
        await scene.world.say(
            event.JobFinished(iterations=9, committed=9, samples_expected=1, samples_once=1, final_loss=None)
        )
        await scene.world.join("n0", "a2")
        await heard(scene, event.NodeLost, job=FLEET)
        assert not scene.world.of(event.NodeLost, job=JOB)


async def test_a_restarted_detector_knows_a_node_that_died_with_it(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.join("n0", "n0-a1")
        await scene.world.started(0, 1, incarnation="n0-a1")
        await scene.pass_time(5.0, "n0")
    async with scene.detector("d2"):
        await scene.pass_time(6.0)
        assert not scene.world.verdicts  # it warms up: twice the floor
        await scene.pass_time(3.5)
        [lost] = await heard(scene, event.NodeLost, job=JOB)
        assert lost.verdict.ranks == (0, 1)


async def test_a_restarted_detector_does_not_repeat_itself(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.join("n0", "n0-a1")
        await scene.world.started(0, 1, incarnation="n0-a1")
        await scene.pass_time(10.0)
        await heard(scene, event.NodeLost, 2)
    scene.world.verdicts.clear()
    async with scene.detector("d2"):
        await scene.pass_time(20.0)
        await scene.world.join("n0", "n0-a2")
        await scene.pass_time(1.0)
    assert not scene.world.verdicts


async def test_a_restart_between_two_starts_of_a_node(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.join("n0", "old")
        await scene.world.started(0, 1, incarnation="old")
        await scene.drained()
    await scene.world.join("n0", "new")
    async with scene.detector("d2"):
        [lost] = await heard(scene, event.NodeLost, job=JOB)
        assert (lost.verdict.ranks, lost.evidence["incarnation"]) == ((0, 1), "old")
    assert len(scene.world.verdicts) == 2


async def test_a_restarted_detector_is_not_fooled_by_old_starts(scene: Scene) -> None:
    """n0 started three times in the past; only the last one lives and beats."""
    for incarnation in ("s1", "s2", "s3"):
        await scene.world.join("n0", incarnation)
    async with scene.detector() as detector:
        await wait_for(lambda: len(scene.world.of(event.NodeLost)) == 2)
        await scene.world.beat(0, incarnation="s3")
        await scene.pass_time(0.5)
        assert [s.incarnation for s in detector.picture.fleet.up()] == ["s3"]
    assert len(scene.world.verdicts) == 2


async def test_an_outage_of_the_bus_is_nobodys_death(scene: Scene) -> None:
    async with scene.detector() as detector:
        await scene.pass_time(10.0, "n0", "n1")
        scene.broker.available = False
        await scene.pass_time(60.0)
        scene.broker.available = True
        await scene.pass_time(3.0)
        assert not scene.world.verdicts
        assert detector.num_pardons > 0
        await scene.pass_time(10.0, "n1")
        assert {body.verdict.node for body in scene.world.of(event.NodeLost)} == {"n0"}


async def test_a_bus_that_hangs_is_nobodys_death(scene: Scene) -> None:
    """The connection counts as up, but nothing comes through: not even the detector's own message to itself."""
    async with scene.detector(probe_timeout_s=0.01) as detector:
        await scene.pass_time(10.0, "n0", "n1")
        servers, scene.broker._servers[:] = list(scene.broker._servers), []
        pardons = detector.num_pardons
        await scene.clock.advance(5.0)
        await wait_for(lambda: detector.num_pardons > pardons)
        assert not scene.world.verdicts
        scene.broker._servers[:] = servers


async def test_a_detector_that_was_held_up_forgives(scene: Scene) -> None:
    async with scene.detector(runs=False, confirm_s=0.01) as detector:
        await scene.pass_time(10.0, "n0")
        await detector.judge()
        await scene.clock.advance(300.0)  # the process was suspended
        for _ in range(10):
            await detector.judge()
            await scene.clock.advance(0.5)
        assert detector.num_pardons == 1
        assert not scene.world.verdicts


async def test_an_agent_that_was_given_up_but_lives_is_told_so(scene: Scene) -> None:
    async with scene.detector():
        await scene.pass_time(5.0, "n0")
        await scene.pass_time(6.0)
        await heard(scene, event.NodeLost, 2)
        stored = len(scene.broker.streams[Kind.EVENT])
        await scene.pass_time(3.0, "n0")
        fleet = [e for e in scene.world.verdicts if e.job == FLEET]
        assert 3 <= len(fleet) <= 5  # once a second, not with each beat
        assert len({e.message_id for e in fleet}) == 1
        assert len(scene.broker.streams[Kind.EVENT]) == stored


# --- links ----------------------------------------------------------------------------------------------------------


async def test_a_link_that_nothing_explains_is_lost_once_per_epoch(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.say(broken(1), epoch=3)
        await scene.world.say(broken(2, node="n1"), epoch=3)
        await scene.drained()
        await scene.clock.advance(0.3)
        assert not scene.world.verdicts
        await scene.clock.advance(0.4)
        [lost] = await heard(scene, event.LinkLost)
        assert lost.verdict.ranks == ()
        assert lost.evidence["reporting_ranks"] == [1, 2]
        assert lost.evidence["groups"] == ["tp1", "tp2"]
        assert scene.world.verdicts[0].epoch == 3
        await scene.world.say(broken(0), epoch=3)  # a late report of the same
        await scene.drained()
        await scene.clock.advance(2.0)
        await scene.world.say(broken(0), epoch=4)
        await scene.drained()
        await scene.clock.advance(1.0)
        await heard(scene, event.LinkLost, 2)
        assert [e.epoch for e in scene.world.verdicts] == [3, 4]


async def test_a_death_explains_a_broken_link_before_and_after(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.say(broken(1), epoch=3)
        await scene.drained()
        await scene.clock.advance(0.3)
        await scene.world.say(exited(2), epoch=3)
        await scene.world.say(broken(0), epoch=3)
        await scene.drained()
        await scene.clock.advance(5.0)
        await scene.drained()
        assert not scene.world.of(event.LinkLost)
        await scene.world.say(broken(0), epoch=4)  # long after: the next epoch has its own troubles
        await scene.drained()
        await scene.clock.advance(1.0)
        await heard(scene, event.LinkLost)


async def test_a_broken_link_survives_a_restart_of_the_detector(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.say(broken(1), epoch=3)
        await scene.drained()
    async with scene.detector("d2"):
        await scene.clock.advance(1.0)
        await heard(scene, event.LinkLost)
    scene.world.verdicts.clear()
    async with scene.detector("d3"):
        await scene.clock.advance(5.0)
        await scene.drained()
    assert not scene.world.verdicts


# --- bus ------------------------------------------------------------------------------------------------------------


async def test_a_verdict_waits_for_the_bus(scene: Scene) -> None:
    async with scene.detector():
        await scene.world.say(broken(1), epoch=3)
        await scene.drained()
        scene.broker.available = False
        await scene.clock.advance(2.0)
        scene.broker.available = True
        await scene.clock.advance(1.0)
        await heard(scene, event.LinkLost)
        assert set(scene.world.counts().values()) == {1}
