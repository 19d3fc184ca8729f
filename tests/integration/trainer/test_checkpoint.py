"""Jobs go on from disk: after their end, in another layout; and when neither holders nor copies are left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from resihp_messages.link import IterationCommitted, PlanInstalled
from resihp_plan import ParallelPlan
from resihp_trainer.checkpoint import available
from resihp_trainer.trials.trainer_job import TrainerJob, TrialFailed
from support.trainer_cases import BATCH, HEALTHY, assert_undisturbed, replica, stage
from support.trainer_rollback import SECOND_STAGE, Massacre, settled, without

StartJob = Callable[..., TrainerJob]
OTHER = ParallelPlan(1, (replica(BATCH.micro_batches, stage(0, 1, [0]), stage(1, 4, [1, 2], [3, 1])),))


def test_a_job_goes_on_in_another_layout(start_job: StartJob, tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints"
    first = start_job(5, checkpoints={"path": str(kept), "every": 2, "keep": 2})
    first.install(HEALTHY, "initial")
    first.run()
    *earlier, last = [iteration for iteration, _ in available(kept)]
    assert last == 5
    assert len(earlier) == 1
    assert set(earlier) <= {2, 3, 4}  # one that is due while the disk is busy with the one before begins later
    announced = {f.iteration for _, f in first.all(IterationCommitted) if "checkpoint" in f.phases_s}
    assert announced <= {2, 3, 4, 5}
    resumes = {"path": str(kept), "every": 4, "resume": True}
    second = start_job(8, num_ranks=3, checkpoints=resumes)
    second.install(OTHER, "initial")
    second.run()
    said = [f for _, f in second.all(PlanInstalled)]
    assert {(f.committed, f.state_source, f.lost_iterations) for f in said} == {(5, "checkpoint", 0)}
    assert_undisturbed(second)
    newest = available(kept)[-1][1] / "rank1.safetensors"
    raw = bytearray(newest.read_bytes())
    raw[-5] ^= 1
    newest.write_bytes(raw)
    third = start_job(12, num_ranks=3, checkpoints=resumes)
    third.install(OTHER, "initial")
    with pytest.raises(TrialFailed, match=r"it00000008/rank1\.safetensors: checksum .* is damaged; remove its folder"):
        third.run()


def test_back_to_the_disk(start_job: StartJob, tmp_path: Path) -> None:
    job = start_job(9, snapshots={"every": 0}, checkpoints={"path": str(tmp_path / "checkpoints"), "every": 2})
    job.install(HEALTHY, "initial")
    massacre = Massacre(job, 5)

    def strike() -> None:
        if available(tmp_path / "checkpoints"):  # the first is complete on disk
            massacre()

    job.run(without, strike)
    assert set(job.dead) == set(SECOND_STAGE)
    assert {f.state_source for f in settled(job)} == {"checkpoint"}
    assert_undisturbed(job)
