"""Real workers, real deaths: whatever happens, the job ends with the parameters of the undisturbed run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from resihp_messages import ScriptedFault
from resihp_messages.link import CommunicationFailed, EpochAborted, IterationCommitted, PlanInstalled
from resihp_messages.page import PageState
from resihp_plan import ParallelPlan
from resihp_trainer import verify
from resihp_trainer.trials.trainer_job import TrainerJob, result_folder
from support.trainer_cases import HEALTHY, assert_undisturbed, plan_without
from support.waiting import wait_for_blocking

StartJob = Callable[..., TrainerJob]


def test_verify_says_how_far_a_job_is_from_the_reference(
    start_job: StartJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = start_job(2)
    job.install(HEALTHY, "initial")
    job.run()
    spec, final = tmp_path / "spec.json", result_folder(job)
    spec.write_text(job.spec.model_dump_json())
    arguments = ["--spec", str(spec), "--final", str(final), "--json"]
    assert verify.main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["max_abs_diff"] <= 1e-12
    assert answer["replicas_equal"]
    assert (answer["num_replicas"], answer["committed"], answer["dtype"]) == (2, 2, "float64")
    spoilt = final / "rank6.safetensors"
    tensors = load_file(spoilt)
    tensors["layers.2.wq.weight"][0, 0] += 0.5
    with safe_open(spoilt, framework="pt") as file:
        metadata = file.metadata()
    save_file(tensors, spoilt, metadata)
    assert verify.main(arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["max_abs_diff"] == pytest.approx(0.5)
    assert answer["worst_tensor"] == "layers.2.wq.weight"
    assert not answer["replicas_equal"]
    spoilt.unlink()
    assert verify.main(arguments) == 2
    assert "rank6.safetensors: missing" in capsys.readouterr().err


def fault(rank: int, point: str, kind: str = "kill", iteration: int = 3) -> ScriptedFault:
    return ScriptedFault.model_validate({"kind": kind, "rank": rank, "iteration": iteration, "point": point})


def test_healthy_job_equals_the_reference(start_job: StartJob) -> None:
    job = start_job(4)
    job.install(HEALTHY, "initial")
    job.run()
    assert_undisturbed(job)
    steps = [step for _, step in job.all(IterationCommitted)]
    assert len(steps) == 8 * 4
    assert sum(step.first_of_epoch for step in steps) == 8
    assert all(step.samples_once == step.samples_expected > 0 for step in steps)
    assert all(step.rss_bytes < 450e6 for step in steps)
    # Every token passes each stage of one replica, on both members of its TP group.
    assert sum(step.tokens for step in steps if step.iteration == 2) == 4 * steps[1].global_tokens


@pytest.mark.parametrize(
    ("point", "rank"),
    [
        *[("compute", r) for r in (0, 3)],
        *[("gradient", r) for r in (1, 6)],
        *[("vote", r) for r in (0, 4)],
        *[("optimizer", r) for r in (0, 7)],
    ],
)
def test_a_killed_rank(start_job: StartJob, point: str, rank: int) -> None:
    job = start_job(5, faults=(fault(rank, point),))
    job.install(HEALTHY, "initial")
    job.run(plan_without)
    assert job.dead == {rank: -signal.SIGKILL}
    assert_undisturbed(job)
    survivors = set(range(8)) - {rank}
    assert {r for r, _ in job.all(EpochAborted, 1)} == survivors  # each says it, and once
    assert len(job.all(EpochAborted)) == len(survivors)
    installed = [f for _, f in job.all(PlanInstalled, 2)]
    assert len(installed) == len(survivors)
    assert {f.committed for f in installed} <= ({2, 3} if point in ("vote", "optimizer") else {2})
    assert len({f.committed for f in installed}) == 1
    assert sum(f.bytes_received for f in installed) > 0
    if point == "optimizer":  # the victim began to apply iteration 3, so all had voted for it
        assert {f.committed for f in installed} == {3}


@pytest.mark.parametrize(("point", "rank"), [("compute", 5), ("vote", 0)])
def test_a_frozen_rank_is_fenced(start_job: StartJob, point: str, rank: int) -> None:
    job = start_job(4, faults=(fault(rank, point, "freeze"),))
    job.install(HEALTHY, "initial")
    job.run(plan_without)
    assert job.dead == {rank: -signal.SIGKILL}
    assert_undisturbed(job)


def test_two_losses_one_after_the_other(start_job: StartJob) -> None:
    job = start_job(5, faults=(fault(1, "gradient", iteration=2), fault(6, "optimizer", iteration=4)))
    job.install(HEALTHY, "initial")
    job.run(plan_without)
    assert set(job.dead) == {1, 6}
    assert_undisturbed(job)


def test_a_whole_stage_dies_at_once(start_job: StartJob) -> None:
    job = start_job(5, faults=(fault(2, "compute"), fault(3, "compute")))
    job.install(HEALTHY, "initial")

    def on_loss(plan: ParallelPlan, dead: list[int]) -> ParallelPlan:
        # The second death may be noticed a moment later: then the first plan is aborted in turn.
        return plan_without(plan, dead, state_plan=HEALTHY)

    job.run(on_loss)
    assert set(job.dead) == {2, 3}
    assert_undisturbed(job)


@pytest.mark.parametrize(
    ("phase", "second"),
    [(PageState.REBUILDING, 1), (PageState.MOVING, 1), (PageState.MOVING, 7), (PageState.TRAINING, 5)],
)
def test_a_second_death_while_recovering(start_job: StartJob, phase: PageState, second: int) -> None:
    job = start_job(5, faults=(fault(4, "vote"),))
    job.install(HEALTHY, "initial")

    def kill_in_phase() -> None:
        """Watch the second victim closely from the moment at which the recovery plan is out."""
        if len(job.plans) != 2 or second not in job.workers:
            return
        worker = job.workers[second]
        wait_for_blocking(lambda: worker.page.read().epoch == 2 and worker.page.read().state >= phase, 30, every_s=5e-4)
        job.kill(second)

    job.run(lambda plan, dead: plan_without(plan, dead, state_plan=HEALTHY), kill_in_phase)
    assert set(job.dead) == {4, second}
    assert_undisturbed(job)


def test_a_second_death_while_leaving(start_job: StartJob) -> None:
    """The abort is out, the plan is not: the second victim dies on its way out, so that the first plan contains it."""
    job = start_job(5, faults=(fault(4, "gradient"),))
    job.install(HEALTHY, "initial")

    def on_loss(plan: ParallelPlan, dead: list[int]) -> ParallelPlan:
        if 1 in job.workers:
            job.kill(1)
        return plan_without(plan, dead, state_plan=HEALTHY)

    job.run(on_loss)
    assert set(job.dead) == {4, 1}
    assert [1 in plan.world for plan in job.plans] == [True, True, False]
    assert_undisturbed(job)


def test_a_death_while_waiting_for_a_member(start_job: StartJob) -> None:
    """The plan reaches all ranks but one, which then dies: the others wait in the construction and must get out."""
    job = start_job(4, faults=(fault(4, "compute"),))
    job.install(HEALTHY, "initial")
    job.wait(lambda: job.committed(0) >= 2, "two iterations")
    while 4 in job.workers:
        job.pump()
    job.abort([4])
    second = plan_without(HEALTHY, [4])
    job.install(second, "recovery", ranks=[r for r in second.world if r != 2])
    job.wait(lambda: job.workers[0].page.read().state is PageState.REBUILDING, "rebuilding")
    job.kill(2)
    job.run(lambda plan, dead: plan_without(plan, dead, state_plan=HEALTHY))
    assert set(job.dead) == {4, 2}
    assert_undisturbed(job)


def test_survivors_leave_by_themselves_when_links_break(start_job: StartJob) -> None:
    """Without any word of the agent: a failed collective is reported, and its rank releases the others."""
    job = start_job(4, faults=(fault(3, "compute"),))
    job.install(HEALTHY, "initial")
    job.wait(lambda: job.committed(0) >= 2, "two iterations")
    while 3 in job.workers:
        job.pump()
    job.wait(lambda: len({r for r, _ in job.all(CommunicationFailed, 1)}) == 7, "all survivors gave up")
    assert not job.all(EpochAborted)
    job.abort([3])
    job.install(plan_without(HEALTHY, [3]), "recovery")
    job.run()
    assert_undisturbed(job)
    assert len(job.all(EpochAborted, 1)) == 7


def test_a_plan_that_comes_before_the_abort(start_job: StartJob) -> None:
    """On another node the command may overtake the news of the death: the plan itself ends the epoch."""
    job = start_job(4, faults=(fault(3, "compute", "freeze"),))
    job.fences = False  # its sockets stay open, so no survivor notices anything
    job.install(HEALTHY, "initial")
    job.wait(lambda: job.workers[3].state() == "T", "the victim stands still")
    recovery = plan_without(HEALTHY, [3])
    job.install(recovery, "recovery")
    job.wait(lambda: len(job.all(PlanInstalled, 2)) == 7, "installed without an abort")
    assert not job.all(EpochAborted)
    job.fences = True
    job.run(lambda plan, dead: plan if dead == [3] else pytest.fail(f"{dead} died"))
    assert_undisturbed(job)
