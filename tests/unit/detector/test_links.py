"""Broken links in, verdicts out, unless a death explains them."""

from __future__ import annotations

from resihp_messages import event
from support.detection import broken, exited
from support.detector_scene import Scene, heard


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
