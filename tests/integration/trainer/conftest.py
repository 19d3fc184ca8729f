"""One zygote and store for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resihp_trainer.trials.trainer_job import TrainerJob
from support.trainer_cases import small_job
from support.zygote_client import ZygoteClient


@pytest.fixture(scope="package")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZygoteClient, str]]:
    client = ZygoteClient(tmp_path_factory.mktemp("zygote"), "resihp_trainer.worker:main")
    _, address = client.store()
    yield client, address
    assert client.close() == 0


@pytest.fixture
def start_job(zygote: tuple[ZygoteClient, str], tmp_path: Path) -> Iterator[Callable[..., TrainerJob]]:
    """`start_job(iterations, num_ranks=8, **fields of the job)` -> a job whose workers said hello."""
    jobs: list[TrainerJob] = []

    def start(iterations: int, num_ranks: int = 8, **changes: object) -> TrainerJob:
        spec = small_job(iterations, **{"output_dir": str(tmp_path), **changes})
        jobs.append(TrainerJob(*zygote, spec, range(num_ranks)))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
