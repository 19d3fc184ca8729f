"""Silent, replaced and leaving nodes in, verdicts out."""

from __future__ import annotations

from resihp_messages import FLEET, Kind, event
from support.detection import JOB, exited
from support.detector_scene import Scene, heard
from support.waiting import wait_for


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
