"""Exits of workers in, verdicts out; and a bus that is down when one is due."""

from __future__ import annotations

from resihp_messages import Kind, event
from support.detection import JOB, broken, exited
from support.detector_scene import Scene, heard
from support.waiting import wait_for


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
