"""Probes and silent corruption in real workers: what a detector is told."""

from __future__ import annotations

from collections.abc import Callable

from resihp_detect import Fingerprints
from resihp_detect.localise import locate
from resihp_messages.link import CorruptState, IterationCommitted, SetSpeed, Validate, Validated
from resihp_plan import ParallelPlan
from resihp_plan.probing import probing
from resihp_trainer.trials.trainer_job import TrainerJob
from support.trainer_cases import HEALTHY, assert_undisturbed, replica, stage

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


def test_a_flipped_bit_shows_in_the_fingerprints_of_its_replicas(start_job: StartJob) -> None:
    job = start_job(8, telemetry={"fingerprint_every": 2})
    job.install(HEALTHY, "initial")
    job.run(on_pump=once(job, 3, lambda: job.send([6], CorruptState())))
    state, found = Fingerprints(8), []
    for rank, frame in job.all(IterationCommitted):
        if frame.fingerprints:
            found += state.add(frame.iteration, rank, frame.fingerprints)
    assert found
    assert min(d.iteration for d in found) <= 6
    assert {d.ranks for d in found} == {(2, 6)}  # the same slice of the same stage; two replicas know no majority


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
