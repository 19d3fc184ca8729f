"""Planned changes of a healthy job by the vote, newcomers, standby ranks, refusals, the end of a job."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from resihp_messages.link import (
    EpochAborted,
    Finished,
    FinishNow,
    Hello,
    IterationCommitted,
    PlanHeld,
    PlanInstalled,
    PlanRefused,
    StopNow,
)
from resihp_messages.page import PageState
from resihp_plan import Migration, ParallelPlan, ReplicaPlan, Schedule
from resihp_trainer.trials.trainer_job import TrainerJob, TrialFailed
from support.trainer_cases import HEALTHY, assert_undisturbed, plan_without, replica, stage
from support.waiting import wait_for_blocking

StartJob = Callable[..., TrainerJob]

HALVES = (stage(0, 2, [0, 1]), stage(2, 4, [2, 3]))
OTHER_HALVES = (stage(0, 2, [4, 5]), stage(2, 4, [6, 7]))
THIN = (replica(3, *HALVES), replica(3, stage(0, 2, [4]), stage(2, 4, [6])))
"""TP 2 -> 1 in one replica; ranks 5 and 7 stand by."""
UNEVEN = (
    replica(4, stage(0, 1, [0]), stage(1, 4, [1, 2, 3], [2, 1, 1])),
    replica(2, stage(0, 3, [4, 5], [3, 1]), stage(3, 4, [6, 7])),
)
"""Uneven layers and weights; TP 3 against TP 2; an edge from TP 1 to TP 3."""
MIXED_DEPTH = (replica(3, stage(0, 4, [3, 2, 1, 0])), replica(3, stage(0, 2, [7, 6]), stage(2, 4, [5, 4])))
"""PP 1 with TP 4 beside PP 2; ranks in another order."""
ONE_REPLICA = (replica(6, stage(0, 1, [0, 1]), stage(1, 2, [2, 3]), stage(2, 3, [4, 5]), stage(3, 4, [6, 7])),)
FOUR_REPLICAS = tuple(replica(n, stage(0, 4, [a, b])) for n, a, b in ((2, 0, 7), (2, 1, 6), (1, 2, 5), (1, 3, 4)))
IDLE_REPLICA = (replica(6, *HALVES), replica(0, *OTHER_HALVES))
LAYOUTS: tuple[tuple[tuple[ReplicaPlan, ...], tuple[int, ...]], ...] = (
    (THIN, (5, 7)),
    (UNEVEN, ()),
    (MIXED_DEPTH, ()),
    (ONE_REPLICA, ()),
    (FOUR_REPLICAS, ()),
    (IDLE_REPLICA, ()),
    (HEALTHY.replicas, ()),
)


def planned(layouts: Iterable[tuple[tuple[ReplicaPlan, ...], tuple[int, ...]]], first_epoch: int) -> list[ParallelPlan]:
    return [ParallelPlan(first_epoch + i, replicas, standby=standby) for i, (replicas, standby) in enumerate(layouts)]


MIGRATIONS = (
    Migration(0, 0, 0, 1),  # the first stage only: activations come back
    Migration(0, 1, 1, 1),  # the last stage only: the executor answers for its documents
    Migration(1, 0, 0, 0),  # a whole micro-batch, and units in both directions at once
    Migration(1, 1, 0, 0),
)
NO_HEADS = (
    replica(3, stage(0, 2, [0, 1, 2], [3, 3, 1]), stage(2, 4, [3])),
    replica(3, stage(0, 2, [4, 5]), stage(2, 4, [6, 7], [9, 1])),
)
"""Ranks 2 and 7 hold MLP blocks only. Equal layers, unequal degrees: units migrate between TP 3 and TP 2."""
ZB_H1 = Schedule.ZB_H1
OTHER_PROGRAMS = (
    ParallelPlan(2, HEALTHY.replicas, migrations=MIGRATIONS),
    ParallelPlan(3, HEALTHY.replicas, schedule=ZB_H1),
    ParallelPlan(4, NO_HEADS, migrations=MIGRATIONS, schedule=ZB_H1),
    ParallelPlan(5, ONE_REPLICA, schedule=ZB_H1),
    ParallelPlan(6, HEALTHY.replicas),
)


class Sequence:
    """Delivers the next planned plan as soon as the one before is in use."""

    def __init__(self, job: TrainerJob, plans: list[ParallelPlan]) -> None:
        self.job, self.plans = job, plans

    def __call__(self) -> None:
        newest = self.job.plans[-1]
        if self.plans and self.job.all(IterationCommitted, newest.epoch):
            self.job.install(self.plans.pop(0), "planned")


def test_changes_through_many_layouts(start_job: StartJob) -> None:
    job = start_job(24)
    job.install(HEALTHY, "initial")
    pids = {rank: worker.pid for rank, worker in job.workers.items()}
    plans = planned(LAYOUTS, 2)
    job.run(on_pump=Sequence(job, list(plans)))
    assert job.plans == [HEALTHY, *plans]
    assert job.last_plan == plans[-1]
    for plan in plans:
        installed = job.all(PlanInstalled, plan.epoch)
        assert {rank for rank, _ in installed} == set(range(8))
        assert {f.abort_s for _, f in installed} == {0.0}
    assert not job.all(EpochAborted)
    assert {hello.pid for _, hello in job.all(Hello)} == set(pids.values())
    assert_undisturbed(job)


def test_migrations_and_schedules_change_live(start_job: StartJob) -> None:
    """Units executed elsewhere, split backward and members without heads, one after the other: equal parameters."""
    job = start_job(36)
    job.install(HEALTHY, "initial")
    job.run(on_pump=Sequence(job, list(OTHER_PROGRAMS)))
    assert job.plans == [HEALTHY, *OTHER_PROGRAMS]
    assert not job.all(EpochAborted)
    assert_undisturbed(job)


def test_a_death_among_migrated_units(start_job: StartJob) -> None:
    """The executor of foreign units dies: nothing of them is lost or counted twice."""
    victim = {"kind": "kill", "rank": 4, "iteration": 2}
    job = start_job(4, faults=[victim])
    job.install(ParallelPlan(1, HEALTHY.replicas, migrations=MIGRATIONS, schedule=ZB_H1), "initial")
    job.run(plan_without)
    assert job.dead == {4: -signal.SIGKILL}
    assert job.last_plan.schedule is ZB_H1
    assert_undisturbed(job)


def test_nothing_leaks_through_changes(start_job: StartJob) -> None:
    """Threads and descriptors of every worker are the same after each second change; memory stays level."""
    job = start_job(26)
    job.install(HEALTHY, "initial")
    layouts = [(UNEVEN, ()), (HEALTHY.replicas, ())] * 6
    follow = Sequence(job, planned(layouts, 2))
    counts: dict[int, list[tuple[int, int]]] = {}

    def on_pump() -> None:
        newest = job.plans[-1].epoch
        if newest not in counts and {rank for rank, _ in job.all(IterationCommitted, newest)} == set(range(8)):
            counts[newest] = [
                (len(os.listdir(f"/proc/{w.pid}/task")), len(os.listdir(f"/proc/{w.pid}/fd")))
                for w in job.workers.values()
            ]
            follow()

    job.run(on_pump=on_pump)
    assert_undisturbed(job)
    for rank in range(8):
        sizes = [f.rss_bytes for f in job.frames[rank] if isinstance(f, IterationCommitted)]
        assert max(sizes) < 1.05 * sizes[5], (rank, sizes)
    series = [counts[epoch] for epoch in sorted(counts) if epoch % 2 == HEALTHY.epoch % 2][1:]
    assert len(series) >= 4
    # Retired groups are dropped in the background, so single counts may still contain the last ones.
    for rank in range(8):
        for what in (0, 1):
            seen = [count[rank][what] for count in series]
            assert min(seen[2:]) <= min(seen[:2]), (rank, seen)


def test_a_newcomer_joins_by_a_planned_change(start_job: StartJob) -> None:
    job = start_job(4, num_ranks=8)
    job.install(HEALTHY, "initial")
    job.start(8)
    wider = ParallelPlan(2, (replica(3, stage(0, 2, [0, 1, 8]), HALVES[1]), HEALTHY.replicas[1]))
    job.run(on_pump=Sequence(job, [wider]))
    assert_undisturbed(job)
    (installed,) = [f for rank, f in job.all(PlanInstalled) if rank == 8]
    assert installed.bytes_received > 0
    assert installed.committed >= 1


def test_a_newcomer_replaces_a_dead_rank(start_job: StartJob) -> None:
    job = start_job(4)
    job.install(HEALTHY, "initial")
    job.start(8)
    killed = False

    def on_loss(plan: ParallelPlan, dead: list[int]) -> ParallelPlan:
        assert dead == [5]
        return ParallelPlan(2, (plan.replicas[0], replica(3, stage(0, 2, [4, 8]), stage(2, 4, [6, 7]))))

    def on_pump() -> None:
        nonlocal killed
        if not killed and job.committed(0) >= 2:
            killed = True
            job.kill(5)

    job.run(on_loss, on_pump)
    assert_undisturbed(job)


def test_a_standby_rank_takes_over(start_job: StartJob) -> None:
    job = start_job(4)
    first = ParallelPlan(1, THIN, standby=(5, 7))
    job.install(first, "initial")
    job.wait(lambda: job.committed(7) >= 1, "the standby rank votes")
    assert job.workers[7].page.read().state is PageState.STANDBY
    job.kill(6)
    after = ParallelPlan(2, (replica(3, *HALVES), replica(3, stage(0, 2, [4]), stage(2, 4, [7]))), standby=(5,))
    job.run(lambda plan, dead: after)
    assert_undisturbed(job)


def test_a_death_voids_a_held_plan(start_job: StartJob) -> None:
    """A plan that only some ranks hold is never switched to; after a death it is gone."""
    job = start_job(4)
    job.install(HEALTHY, "initial")
    held = ParallelPlan(2, ONE_REPLICA)
    job.install(held, "planned", ranks=range(7))
    job.wait(lambda: len(job.all(PlanHeld, 2)) == 7, "seven hold the plan")
    job.wait(lambda: job.committed(0) >= 2, "two iterations")
    assert not job.all(PlanInstalled, 2)
    job.kill(3)
    job.run(lambda plan, dead: plan_without(HEALTHY, dead).with_epoch(3))
    assert not job.all(PlanInstalled, 2)
    assert_undisturbed(job)


def test_refused_plans_change_nothing(start_job: StartJob) -> None:
    job = start_job(6)
    job.install(HEALTHY, "initial")
    job.wait(lambda: job.committed(0) >= 1, "an iteration")
    better = ParallelPlan(3, ONE_REPLICA)
    cases = {
        "epoch": HEALTHY.with_epoch(0),
        "world": ParallelPlan(3, (replica(6, stage(0, 4, [1, 2])),)),
        "layers": ParallelPlan(3, (replica(6, stage(0, 3, range(8))),)),
        "micro-batches": ParallelPlan(3, (replica(5, stage(0, 4, [0, 1])),)),
    }
    for plan in cases.values():
        job.install(plan, "planned", ranks=[0])
        job.plans.pop()
    job.install(better, "planned", ranks=[0], digest=HEALTHY.digest)
    job.plans.pop()
    job.wait(lambda: len(job.all(PlanRefused)) == len(cases) + 1, "all are refused")
    reasons = [f.reason for _, f in job.all(PlanRefused)]
    assert [reason.partition(":")[0] for reason in reasons] == [*cases, "digest"]
    assert not job.all(PlanHeld, better.epoch)
    job.run()
    assert_undisturbed(job)


def test_a_death_after_the_last_iteration(start_job: StartJob) -> None:
    """Somebody dies while the results are written: the rest still finish, whether one of them was done or not."""
    job = start_job(2)
    job.install(HEALTHY, "initial")
    job.wait(lambda: job.committed(2) == 1, "an iteration")
    page = job.workers[2].page
    wait_for_blocking(lambda: page.read().state >= PageState.FINISHING, 30, every_s=0.001)
    job.kill(2)
    job.run(plan_without)
    survivors = {rank for rank, f in job.all(Finished)} - {2}
    assert survivors == set(range(8)) - {2}
    assert {f.committed for _, f in job.all(Finished)} == {2}


def test_finish_now_ends_waiting_ranks(start_job: StartJob) -> None:
    job = start_job(2)
    job.install(HEALTHY, "initial")
    job.wait(lambda: all(job.committed(r) == 2 for r in range(8)) or len(job.all(Finished)) > 0, "all committed")
    job.abort([7])
    job.send(range(8), FinishNow())
    job.run()
    assert len(job.all(Finished)) == 8
    assert_undisturbed(job)


def test_stop_now_ends_without_a_result(start_job: StartJob, tmp_path: Path) -> None:
    job = start_job(500)
    job.install(HEALTHY, "initial")
    job.wait(lambda: job.committed(0) >= 1, "an iteration")
    job.send(range(8), StopNow())
    job.run()
    assert not job.dead
    assert not job.all(Finished)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("path", ["missing.txt", "empty.txt"])
def test_bad_data_fails_with_one_line(start_job: StartJob, tmp_path: Path, path: str) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(TrialFailed, match=rf"data\.path.*{path}"):
        start_job(2, num_ranks=1, data={"path": str(tmp_path / path)})
