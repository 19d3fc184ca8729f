"""What a node remembers of a job: deaths, plans, and which rank has come back."""

from __future__ import annotations

from collections.abc import Iterable

from resihp_agent.columns import ReportColumns
from resihp_agent.job import LocalJob
from resihp_agent.progress import PlanProgress
from resihp_messages import link


def first_starts(ranks: Iterable[int]) -> dict[int, int]:
    return dict.fromkeys(ranks, 0)


def job_with_plan(epoch: int, world: tuple[int, ...], members: Iterable[int]) -> LocalJob:
    job = LocalJob("demo", ReportColumns("n0"))
    job.take_plan(progress(epoch, world), first_starts(members))
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
    job = job_with_plan(1, (0, 1), {0, 1, 2})
    assert job.abort({2: 0}, noticed_s=10.0, reason="") == (2,)
    assert job.abort({2: 0, 1: 0}, noticed_s=11.0, reason="") == (1,)
    assert job.notice_s == 10.0
    assert job.plans[1].lost == {1}


def test_a_death_explains_failures_of_its_epochs_only() -> None:
    job = job_with_plan(1, (0, 1), {0, 1, 2})
    assert not job.explains(1)
    job.abort({2: 0}, noticed_s=10.0, reason="")
    assert job.explains(1)
    job.take_plan(progress(2), first_starts({0, 1}))
    assert not job.explains(2)


def test_a_plan_that_does_not_know_of_a_death_is_outdated() -> None:
    job = job_with_plan(1, (0, 1), {0, 1, 2})
    job.abort({2: 0}, noticed_s=10.0, reason="")
    assert job.outdated_ranks({0: 0, 1: 0, 2: 0}) == (2,)
    assert job.outdated_ranks({0: 0, 1: 0}) == ()
    assert job.outdated_ranks({0: 0, 1: 0, 2: 1}) == ()  # a plan with its replacement


def test_a_rank_comes_back_as_another_start_and_may_die_again() -> None:
    job = job_with_plan(1, (0, 1), {0, 1, 2})
    job.abort({2: 0}, noticed_s=10.0, reason="")
    job.notice_s = None  # repaired
    job.take_plan(progress(2), {0: 0, 1: 0, 2: 1})
    assert not job.explains(2)
    assert job.abort({2: 0}, noticed_s=11.0, reason="late news") == ()
    assert not job.plans[2].lost
    assert job.abort({2: 1}, noticed_s=12.0, reason="") == (2,)
    assert job.explains(2)
    assert job.notice_s == 12.0
    assert job.outdated_ranks({2: 1}) == (2,)


def test_the_death_of_a_process_that_no_plan_awaits_starts_no_clock() -> None:
    job = job_with_plan(1, (0, 1), {0, 1})
    job.learn_starts({2: 1})
    assert job.abort({2: 1}, noticed_s=10.0, reason="it never got so far") == (2,)
    assert job.notice_s is None
    assert job.start_of(2) == 1


def test_old_plans_are_forgotten_when_a_newer_one_runs() -> None:
    job = job_with_plan(1, (0, 1), {0, 1})
    install(job, 1)
    job.take_plan(progress(2), first_starts({0, 1}))
    assert (job.running_epoch, job.newest_epoch) == (1, 2)
    install(job, 2)
    job.take_plan(progress(3), first_starts({0, 1}))
    assert sorted(job.plans) == sorted(job.members) == [2, 3]
