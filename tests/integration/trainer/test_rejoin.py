"""A rank that died is started again: it gets its shards from the others and goes on with them; nobody else restarts.

The replacement says hello before the recovery plan goes out, so that the switch needs no luck with time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from resihp_messages import ScriptedFault
from resihp_messages.link import CommunicationFailed, EpochAborted, Hello, PlanInstalled
from resihp_plan import ParallelPlan
from resihp_trainer.trials.trainer_job import TrainerJob
from support.trainer_cases import HEALTHY, assert_undisturbed, plan_without

StartJob = Callable[..., TrainerJob]
VICTIM = 3


def kill(rank: int, iteration: int, start: int = 0) -> ScriptedFault:
    return ScriptedFault.model_validate({"kind": "kill", "rank": rank, "iteration": iteration, "start": start})


class Rejoin:
    """`on_loss` and `on_pump` of a job whose rank 3 dies and comes back at the planned epoch 3."""

    def __init__(self, job: TrainerJob, then: Callable[[], None] = lambda: None) -> None:
        self.job = job
        self.then = then
        """Called right after the planned change was sent."""
        self.pids = {rank: worker.pid for rank, worker in job.workers.items()}

    def on_loss(self, plan: ParallelPlan, dead: list[int]) -> ParallelPlan:
        if plan.epoch > 1:
            held = next(p for p in reversed(self.job.plans) if p.epoch < 3) if plan.epoch == 3 else plan
            return plan_without(plan, dead, state_plan=held)
        assert dead == [VICTIM]
        recovery = plan_without(plan, dead)
        self.job.start(VICTIM)
        self.job.wait(lambda: self.job.last(VICTIM, Hello) is not None, "the replacement's hello")
        return recovery

    def on_pump(self) -> None:
        if len(self.job.plans) == 2 and self.job.is_installed(self.job.plans[1]):
            self.job.install(HEALTHY.with_epoch(3), "planned")
            self.then()

    def run(self) -> None:
        self.job.install(HEALTHY, "initial")
        self.job.run(self.on_loss, self.on_pump)


def test_a_rank_comes_back(start_job: StartJob) -> None:
    job = start_job(8, faults=(kill(VICTIM, 3),))
    rejoin = Rejoin(job)
    rejoin.run()
    assert job.dead == {}
    assert job.starts == {rank: int(rank == VICTIM) for rank in range(8)}
    assert job.last_plan == HEALTHY.with_epoch(3)
    assert_undisturbed(job)
    joined = [f for rank, f in job.all(PlanInstalled, 3) if rank == VICTIM]
    assert len(joined) == 1
    assert joined[0].bytes_received > 0
    assert {rank for rank, _ in job.all(EpochAborted)} == set(range(8)) - {VICTIM}  # for the loss only
    assert len(job.all(EpochAborted)) == 7


def test_it_dies_again_and_is_missed_again(start_job: StartJob) -> None:
    job = start_job(8, faults=(kill(VICTIM, 3), kill(VICTIM, 7, start=1)))
    Rejoin(job).run()
    assert job.dead == {VICTIM: -signal.SIGKILL}
    assert job.starts[VICTIM] == 1
    assert job.last_plan.epoch == 4
    assert_undisturbed(job)


@pytest.mark.parametrize("second", [VICTIM, 5])
def test_a_death_while_it_is_taken_in(start_job: StartJob, second: int) -> None:
    """The newcomer itself, or a rank that has state: the others leave the half-made epoch and go on without it."""
    job = start_job(8, faults=(kill(VICTIM, 3),))
    Rejoin(job, then=lambda: job.kill(second)).run()
    assert job.dead == {second: -signal.SIGKILL}
    assert job.last_plan.epoch == 4
    assert (VICTIM in job.last_plan.world) == (second != VICTIM)
    assert_undisturbed(job)


def test_a_frozen_rank_that_wakes_up_late_disturbs_nobody(start_job: StartJob) -> None:
    """It is in no group any more; it finds its sockets closed, its epoch gone, and no plan for it."""
    fault = ScriptedFault.model_validate({"kind": "freeze", "rank": VICTIM, "iteration": 2})
    job = start_job(6, faults=(fault,))
    job.fences = False
    job.install(HEALTHY, "initial")
    job.wait(lambda: job.workers[VICTIM].state() == "T", "the victim stands still")
    recovery = plan_without(HEALTHY, [VICTIM])
    job.abort([VICTIM])
    job.install(recovery, "recovery")
    job.wait(lambda: len(job.all(PlanInstalled, 2)) == 7, "the others go on")
    job.send_signal(VICTIM, signal.SIGCONT)

    def noticed() -> bool:
        said = job.last(VICTIM, CommunicationFailed) or job.last(VICTIM, EpochAborted)
        return said is not None and said.epoch == 1

    job.wait(noticed, "the victim finds that its epoch is gone")
    job.kill(VICTIM)
    job.run(lambda plan, dead: plan if dead == [VICTIM] else pytest.fail(f"{dead} died"))
    assert_undisturbed(job)
    assert not [rank for rank, _ in job.all(PlanInstalled, 2) if rank == VICTIM]
