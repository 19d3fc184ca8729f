"""A checkpoint that cannot be written: said, given up by all ranks together; training and the older ones are safe."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from resihp_messages.link import CheckpointFailed
from resihp_trainer.checkpoint import available
from resihp_trainer.trials.trainer_job import TrainerJob
from support.trainer_cases import HEALTHY, assert_undisturbed

StartJob = Callable[..., TrainerJob]
TOO_SMALL = 64 << 10
"""Bytes of a file from which on a write fails with EFBIG, as it would with ENOSPC on a full disk. The shards of a rank
are larger, its log is not."""


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_full_disk(start_job: StartJob, tmp_path: Path) -> None:
    kept = tmp_path / "checkpoints"
    job = start_job(14, output_dir=None, snapshots={"every": 0}, checkpoints={"path": str(kept), "every": 3, "keep": 5})
    job.install(HEALTHY, "initial")
    seen: list[int] = []
    """Iterations with a complete checkpoint when the disk was full, and when it was not any more."""

    def on_pump() -> None:
        if not seen and available(kept):
            seen.append(available(kept)[-1][0])
            limit(job, TOO_SMALL)
        if len(seen) == 1 and job.all(CheckpointFailed):
            seen.append(available(kept)[-1][0])
            limit(job, resource.RLIM_INFINITY)

    job.run(on_pump=on_pump)
    assert len(seen) == 2
    assert seen[0] == seen[1], "a checkpoint was completed on a full disk"
    failed = job.all(CheckpointFailed)
    assert all(said.iteration > seen[0] and "it0000" in said.path and said.error for _, said in failed)
    complete = [iteration for iteration, _ in available(kept)]
    assert complete[0] == seen[0]
    assert complete[-1] == 14
    assert not set(complete) & {said.iteration for _, said in failed}
    assert not list(kept.glob(".*.partial"))


def limit(job: TrainerJob, size: float) -> None:
    for worker in job.workers.values():
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_folder_that_is_none(start_job: StartJob, tmp_path: Path) -> None:
    """From the first on, also the one after the last iteration; the job ends as if nothing had been asked."""
    (tmp_path / "file").write_text("not a folder")
    job = start_job(5, checkpoints={"path": str(tmp_path / "file"), "every": 2})
    job.install(HEALTHY, "initial")
    job.run()
    assert {said.iteration for _, said in job.all(CheckpointFailed)} >= {2, 5}
    assert_undisturbed(job)
