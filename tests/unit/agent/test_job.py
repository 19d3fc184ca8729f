"""What a node remembers of a job: deaths, plans, and which rank has come back."""

from __future__ import annotations

from resihp_agent.columns import ReportColumns
from resihp_agent.job import LocalJob
from resihp_agent.progress import PlanProgress
from resihp_messages import link


def job_with_plan(epoch: int, world: tuple[int, ...], members: frozenset[int]) -> LocalJob:
    job = LocalJob("demo", ReportColumns("n0"))
    job.take_plan(progress(epoch, world), members)
    return job


def progress(epoch: int, world: tuple[int, ...] = (0, 1)) -> PlanProgress:
    return PlanProgress("n0", epoch, "recovery", "rc", "a" * 64, world, 0.0, 0.0)


def install(job: LocalJob, epoch: int, ranks: tuple[int, ...] = (0, 1)) -> None:
    for rank in ranks:
        frame = link.PlanInstalled(
            epoch=epoch,
            reconfiguration_id="rc",
            digest="a" * 64,
            committed=1,
            abort_s=0,
            rebuild_s=0,
            move_s=0,
            bytes_received=0,
            digests_equal=True,
        )
        job.plans[epoch].installed(rank, frame)


def test_a_death_is_told_once_and_starts_the_clock_once() -> None:
    job = job_with_plan(1, (0, 1), frozenset({0, 1, 2}))
    assert job.abort([2], noticed_s=10.0, reason="") == (2,)
    assert job.abort([2, 1], noticed_s=11.0, reason="") == (1,)
    assert job.notice_s == 10.0
    assert job.plans[1].lost == {1}


def test_a_death_explains_failures_of_its_epochs_only() -> None:
    job = job_with_plan(1, (0, 1), frozenset({0, 1, 2}))
    assert not job.explains(1)
    job.abort([2], noticed_s=10.0, reason="")
    assert job.explains(1)
    job.take_plan(progress(2), frozenset({0, 1}))
    assert not job.explains(2)


def test_a_plan_that_does_not_know_of_a_death_is_outdated() -> None:
    job = job_with_plan(1, (0, 1), frozenset({0, 1, 2}))
    job.abort([2], noticed_s=10.0, reason="")
    assert job.note_deaths(frozenset({0, 1, 2}), []) == (2,)
    assert job.note_deaths(frozenset({0, 1}), [2]) == ()


def test_a_rank_that_a_later_plan_uses_again_has_come_back() -> None:
    job = job_with_plan(1, (0, 1), frozenset({0, 1, 2}))
    job.abort([2], noticed_s=10.0, reason="")
    assert job.note_deaths(frozenset({0, 1}), [2]) == ()
    assert job.note_deaths(frozenset({0, 1, 2}), []) == ()
    assert job.dead == {}
    assert job.abort([2], noticed_s=12.0, reason="") == (2,)  # and may die again


def test_old_plans_are_forgotten_when_a_newer_one_runs() -> None:
    job = job_with_plan(1, (0, 1), frozenset({0, 1}))
    install(job, 1)
    job.take_plan(progress(2), frozenset({0, 1}))
    assert (job.running_epoch, job.newest_epoch) == (1, 2)
    install(job, 2)
    job.take_plan(progress(3), frozenset({0, 1}))
    assert sorted(job.plans) == sorted(job.members) == [2, 3]
