"""Whole jobs on engines in threads: what an engine says beside its iterations, over a planned change of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resihp_messages import JobSpec
from resihp_messages.link import CheckpointFailed, Evaluated, IterationCommitted, PlanInstalled
from resihp_plan import ParallelPlan, Schedule
from resihp_trainer.checkpoint import available
from resihp_trainer.data import documents
from resihp_trainer.model import Stage, TensorParallel
from resihp_trainer.reference import held_out_of, train_reference
from resihp_trainer.result import assemble, result_folder
from support.thread_engines import ThreadEngines, store_address
from support.trainer_cases import SPEC, replica, small_job, stage

FIRST = ParallelPlan(
    1, (replica(3, stage(0, 2, [0]), stage(2, 4, [1])), replica(3, stage(0, 2, [2]), stage(2, 4, [3])))
)
SECOND = ParallelPlan(
    2,
    (replica(4, stage(0, 3, [0]), stage(3, 4, [1])), replica(2, stage(0, 4, [2, 3], [3, 1]))),
    schedule=Schedule.ZB_H1,
)


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with store_address() as address:
        yield address


@pytest.fixture
def evaluated(tmp_path: Path) -> dict[str, object]:
    paragraphs = (f"Paragraph {n} says {n * n} to whoever reads it, and {n**3} to the rest." for n in range(90))
    (tmp_path / "held_out.txt").write_text("\n\n".join(paragraphs))
    (tmp_path / "out").mkdir()
    evaluation = {"every": 2, "path": str(tmp_path / "held_out.txt"), "batches": 2}
    return {"evaluation": evaluation, "output_dir": str(tmp_path / "out"), "snapshots": {"every": 2}}


def run(spec: JobSpec, store: str, namespace: str) -> ThreadEngines:
    job = ThreadEngines(spec, FIRST, store, namespace)
    job.change_after(2, SECOND)
    job.run()
    assert {f.epoch for _, f in job.all(PlanInstalled)} == {1, 2}
    return job


def assert_parity(job: ThreadEngines) -> None:
    """Training is as if there were neither evaluations nor checkpoints."""
    assert job.spec.output_path is not None
    found = assemble(result_folder(job.spec.output_path, SECOND.epoch), SECOND, SPEC)
    reference = train_reference(small_job(job.spec.iterations)).held.parameters
    assert found.are_equal
    assert max(float((whole[n] - p).abs().max()) for whole in found.replicas for n, p in reference.items()) <= 1e-11


def held_out_loss(spec: JobSpec, iteration: int) -> float:
    """After this iteration of the undisturbed run, on one dense device."""
    corpus = held_out_of(spec)
    assert corpus is not None
    reference = train_reference(small_job(iteration)).held.parameters
    whole = Stage(SPEC, 0, SPEC.num_layers, reference, TensorParallel())
    batches = [documents(corpus, spec.batch, spec.seed, n) for n in (1, 2)]
    loss = sum(float(whole.forward(b.micro_batch(range(len(b.documents))), None)) for b in batches)
    return loss / sum(b.num_tokens for b in batches)


def test_evaluation_and_checkpoints_over_a_change(store: str, tmp_path: Path, evaluated: dict[str, object]) -> None:
    kept = tmp_path / "checkpoints"
    spec = small_job(7, **evaluated, checkpoints={"path": str(kept), "every": 2, "keep": 9})
    job = run(spec, store, "good")
    said = {f.iteration: f for _, f in job.all(Evaluated)}
    assert {k: f.epoch for k, f in said.items()} == {2: 1, 4: 2, 6: 2}
    assert len(job.all(Evaluated)) == 3
    for iteration, one in said.items():
        assert one.loss == pytest.approx(held_out_loss(spec, iteration), rel=1e-10)
    announced = {(rank, f.iteration) for rank, f in job.all(IterationCommitted) if "evaluation" in f.phases_s}
    assert announced == {(rank, k) for rank in range(4) for k in (3, 5, 7)}
    assert not job.all(CheckpointFailed)
    assert [iteration for iteration, _ in available(kept)][-1] == 7
    assert_parity(job)


def test_a_folder_that_is_none_is_said_and_harms_nothing(
    store: str, tmp_path: Path, evaluated: dict[str, object]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    job = run(small_job(7, **evaluated, checkpoints={"path": str(tmp_path / "file"), "every": 2}), store, "bad")
    failed = [f for _, f in job.all(CheckpointFailed)]
    assert {2, 7} <= {f.iteration for f in failed}
    assert all("Not a directory" in f.error and f.path.startswith(str(tmp_path)) for f in failed)
    assert {rank for rank, _ in job.all(CheckpointFailed)} == {0, 1}  # who writes: the first replica
    assert_parity(job)
