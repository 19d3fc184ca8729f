"""Probes and silent corruption in real workers: what a detector is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resihp_detect import Divergence, Fingerprints, Redone
from resihp_detect.localise import locate
from resihp_messages.link import CorruptState, IterationCommitted, PlanInstalled, SetSpeed, Validate, Validated
from resihp_plan import ParallelPlan
from resihp_plan.probing import probing
from resihp_trainer.trials.trainer_job import TrainerJob
from support.trainer_cases import HEALTHY, assert_undisturbed, replica, stage
from support.trainer_rollback import without

StartJob = Callable[..., TrainerJob]
VIRTUAL = {"virtual": True, "flops_per_s": 4e9}


def once(job: TrainerJob, iteration: int, act: Callable[[], None]) -> Callable[[], None]:
    """For `run(on_pump=...)`: act as soon as rank 0 has committed `iteration`."""
    left = [act]

    def on_pump() -> None:
        if left and job.committed(0) >= iteration:
            left.pop()()

    return on_pump


def test_probes_name_the_slow_device_at_one_boundary_and_disturb_nothing(start_job: StartJob) -> None:
    job = start_job(10, clock=VIRTUAL)
    job.install(HEALTHY, "initial")
    chosen = probing(HEALTHY, [5])
    order = Validate(validation_id="v1", ranks=chosen.ranks, links=chosen.links)

    def act() -> None:
        job.send([5], SetSpeed(factor=0.5))
        job.send([0, 1, 2, 3], order)  # some hear of it later than others
        job.send([4, 5, 6, 7], order)

    job.run(on_pump=once(job, 2, act))
    answers = dict(job.all(Validated))
    assert set(answers) == set(chosen.ranks)
    assert len({a.iteration for a in answers.values()}) == 1
    assert all(a.asked == chosen.ranks for a in answers.values())
    found = locate({rank: a.compute_s for rank, a in answers.items()}, {})
    assert found.devices == (5,)
    assert abs(found.p - 0.5) < 0.03
    seen = {name: s for a in answers.values() for name, s in a.link_s.items()}
    assert seen.keys() == {f"{a}>{b}" for a, b in chosen.links}
    assert all(s > 0 for s in seen.values())
    assert_undisturbed(job)


def test_an_order_that_not_everybody_holds_waits(start_job: StartJob) -> None:
    job = start_job(8)
    job.install(HEALTHY, "initial")
    job.run(on_pump=once(job, 3, lambda: job.send([0, 1, 2], Validate(validation_id="v1", ranks=(0, 1, 2)))))
    assert not job.all(Validated)
    assert_undisturbed(job)


def test_devices_are_probed_when_an_epoch_begins_and_while_they_stand_by(start_job: StartJob) -> None:
    job = start_job(8, 5, clock=VIRTUAL)
    layouts = (replica(6, stage(0, 2, [0, 1]), stage(2, 4, [2, 3])),)
    job.install(ParallelPlan(1, layouts, standby=(4,)), "initial", ranks=range(5))
    job.send([4], SetSpeed(factor=0.5))
    job.run()
    probes = {
        (rank, f.iteration): f.probe_s for rank, f in job.all(IterationCommitted) if rank in (0, 4) and f.probe_s > 0
    }
    assert set(probes) == {(0, 1), *((4, i) for i in range(1, 9))}
    assert abs(probes[4, 8] / probes[0, 1] - 2.0) < 0.1


COMPARED = {
    "telemetry": {"fingerprint_every": 2},
    "snapshots": {"every": 2},
    "clock": {"virtual": True, "flops_per_s": 1.5e8},  # slow enough for us to answer before the job is over
}


class Corruption:
    """`on_pump`: flips a bit of rank 6 after iteration 3, and answers what the fingerprints show, as the scheduler
    would: go back to where all agreed."""

    def __init__(self, job: TrainerJob) -> None:
        self._job, self._prints, self._heard = job, Fingerprints(8), 0
        self.found: list[Divergence] = []
        self._is_struck = False

    def __call__(self) -> None:
        if not self._is_struck and self._job.committed(0) >= 3:
            self._job.send([6], CorruptState())
            self._is_struck = True
        frames = self._job.all(IterationCommitted, HEALTHY.epoch)
        if len(frames) == self._heard or self.found:
            return
        self._heard, self._prints = len(frames), Fingerprints(8)
        for rank, frame in frames:
            if frame.fingerprints:
                self.found += self._prints.add(frame.iteration, rank, frame.fingerprints)
        if self.found:
            self._job.back_to = self.found[0].agreed
            self._job.install(HEALTHY.with_epoch(2), "recovery")


def test_replicas_that_differ_go_back_to_where_they_agreed_and_the_damaged_one_shows(start_job: StartJob) -> None:
    job = start_job(14, **COMPARED)
    job.install(HEALTHY, "initial")
    corruption = Corruption(job)
    job.run(on_pump=corruption)
    assert {d.ranks for d in corruption.found} == {(2, 6)}  # one slice of one stage; two replicas know no majority
    assert {d.agreed for d in corruption.found} <= {2, 4}
    installed = [f for _, f in job.all(PlanInstalled, 2)]
    assert len(installed) == 8
    assert {f.state_source for f in installed} == {"snapshot"}
    assert {f.committed for f in installed} <= {1, 2, 4}
    assert all(f.lost_iterations > 0 for f in installed)
    redone = Redone(8)
    told = [(rank, f) for rank, f in job.all(IterationCommitted, 2) if f.distances]
    assert len(told) == 8
    (damage,) = [d for rank, f in told if (d := redone.add(f.iteration, rank, f.distances)) is not None]
    assert damage.ranks == (6,)
    assert_undisturbed(job)


@pytest.mark.soak
@pytest.mark.parametrize("point", ["move", "ready", "first_vote", "compute"])
def test_a_death_while_replicas_go_back_does_not_bring_the_damage_back(start_job: StartJob, point: str) -> None:
    """Some have gone back when it strikes, some have not."""
    at = 1 if point != "compute" else 8  # the change that goes back is the first one after iteration 1
    job = start_job(14, **COMPARED, faults=[{"kind": "kill", "rank": 3, "iteration": at, "point": point}])
    job.install(HEALTHY, "initial")
    corruption = Corruption(job)
    job.run(without, corruption)
    assert set(job.dead) == {3}
    assert {d.ranks for d in corruption.found} == {(2, 6)}
    assert_undisturbed(job)


def test_both_ends_of_a_slow_link_say_how_long_its_transfers_took(start_job: StartJob) -> None:
    fault = {"kind": "slow_link", "rank": 0, "peer": 2, "factor": 0.1, "iteration": 4}
    job = start_job(7, clock=VIRTUAL, faults=[fault])
    job.install(HEALTHY, "initial")
    job.run()
    told = {(rank, f.iteration): f.link_wait_s for rank, f in job.all(IterationCommitted)}
    for end in (0, 2):
        before, after = (told[end, i]["edge/0>2/f"] for i in (2, 6))
        assert 5.0 < after / before < 20.0  # micro-batches of other lengths move it, too
    assert all(told[5, i]["edge/5>7/f"] < 2.0 * told[5, 2]["edge/5>7/f"] for i in range(3, 8))
    assert_undisturbed(job)
