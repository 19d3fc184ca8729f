"""All holders of a part of the state die at once: everybody goes back to the newest snapshot together, and the job ends
with the parameters of the undisturbed run.

The victims are killed from outside, all in the same moment: scripted deaths may come one after the other, and then the
state is saved alive in between.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from resihp_messages import ScriptedFault
from resihp_messages.link import Failed, IterationCommitted, PlanInstalled
from resihp_messages.page import PageState
from resihp_trainer.trials.trainer_job import TrainerJob, TrialFailed
from support.trainer_cases import HEALTHY, assert_undisturbed
from support.trainer_rollback import SECOND_STAGE, Massacre, settled, without
from support.waiting import wait_for_blocking

StartJob = Callable[..., TrainerJob]
EVERY = 3


def kills(ranks: tuple[int, ...], iteration: int) -> tuple[ScriptedFault, ...]:
    return tuple(ScriptedFault.model_validate({"kind": "kill", "rank": r, "iteration": iteration}) for r in ranks)


def test_a_stage_dies_in_all_replicas(start_job: StartJob) -> None:
    job = start_job(12, snapshots={"every": EVERY})
    job.install(HEALTHY, "initial")
    job.run(without, Massacre(job, 5))
    assert set(job.dead) == set(SECOND_STAGE)
    installed = settled(job)
    assert {f.state_source for f in installed} == {"snapshot"}
    lost = {f.lost_iterations for f in installed}
    assert len(lost) == 1
    assert lost.pop() <= EVERY + 1  # a copy may be late on a crowded host
    assert_undisturbed(job)
    announced = {f.iteration for _, f in job.all(IterationCommitted, HEALTHY.epoch) if "snapshot" in f.phases_s}
    assert {1, EVERY} <= announced  # the first of the epoch, and the regular ones


def test_a_death_while_going_back(start_job: StartJob) -> None:
    """Some ranks have gone back already, some have not, and a guardian is gone: the next plan finds its way all the
    same."""
    job = start_job(12, snapshots={"every": EVERY})
    job.install(HEALTHY, "initial")
    massacre = Massacre(job, 5)
    struck: list[int] = []

    def kill_while_moving() -> None:
        massacre()
        if struck or set(job.dead) != set(SECOND_STAGE):
            return
        worker, epoch = job.workers[5], job.plans[-1].epoch
        wait_for_blocking(
            lambda: worker.page.read().epoch == epoch and worker.page.read().state >= PageState.MOVING, 30, every_s=5e-4
        )
        job.kill(5)
        struck.append(5)

    job.run(without, kill_while_moving)
    assert set(job.dead) == {*SECOND_STAGE, 5}
    assert {f.state_source for _, f in job.all(PlanInstalled)} >= {"snapshot"}
    assert_undisturbed(job)


@pytest.mark.soak
def test_one_after_the_other_until_one_is_left(start_job: StartJob) -> None:
    order = (3, 6, 1, 4, 7, 0, 2)
    faults = tuple(f for k, rank in enumerate(order) for f in kills((rank,), 2 + k))
    job = start_job(12, snapshots={"every": 2}, faults=faults)
    job.install(HEALTHY, "initial")
    job.run(without)
    assert set(job.dead) == set(order)
    assert job.last_plan.world == (5,)
    assert_undisturbed(job)


def test_without_snapshots_and_checkpoints_the_end_is_clear(start_job: StartJob) -> None:
    job = start_job(20, snapshots={"every": 0})
    job.install(HEALTHY, "initial")
    with pytest.raises(TrialFailed, match=r"state lost: no live holder.*no complete snapshot and no checkpoint"):
        job.run(without, Massacre(job, 3))
    assert {rank for rank, _ in job.all(Failed)} <= {0, 1, 4, 5}
