"""One zygote and store for the tests of this folder; jobs with the result of their undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from resihp_messages import BatchConfig, JobSpec, ModelConfig, ScriptedFault
from resihp_trainer.reference import train_reference
from support.trainer_job import TrainerJob
from support.zygote_client import ZygoteClient
from torch import Tensor

MODEL = ModelConfig(num_layers=4, hidden=32, num_heads=8, num_kv_heads=4, ffn_hidden=96, vocab_size=256)
BATCH = BatchConfig(micro_batches=6, tokens_per_micro_batch=48)


@cache
def undisturbed(iterations: int) -> dict[str, Tensor]:
    """Parameters that every job of this folder must end with."""
    held = train_reference(JobSpec(iterations=iterations, dtype="float64", model=MODEL, batch=BATCH)).held
    return {name: p.clone() for name, p in held.parameters.items()}


@pytest.fixture(scope="package")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZygoteClient, str]]:
    client = ZygoteClient(tmp_path_factory.mktemp("zygote"), "resihp_trainer.worker:main")
    _, address = client.store()
    yield client, address
    assert client.close() == 0


StartJob = Callable[..., TrainerJob]


@pytest.fixture
def start_job(zygote: tuple[ZygoteClient, str], tmp_path: Path) -> Iterator[StartJob]:
    """`start_job(num_ranks, iterations=..., faults=...)` -> a job whose workers said hello."""
    jobs: list[TrainerJob] = []

    def start(num_ranks: int, *, iterations: int = 5, faults: tuple[ScriptedFault, ...] = ()) -> TrainerJob:
        spec = JobSpec(
            name=f"job{len(jobs)}",
            iterations=iterations,
            dtype="float64",
            model=MODEL,
            batch=BATCH,
            faults=faults,
            output_dir=str(tmp_path),
        )
        jobs.append(TrainerJob(*zygote, spec, range(num_ranks)))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()
