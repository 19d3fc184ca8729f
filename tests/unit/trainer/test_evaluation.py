"""The loss on held-out text on groups of threads: due or not, who says it, standby ranks included."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resihp_messages import EvaluationConfig, JobSpec
from resihp_messages.link import Evaluated
from resihp_plan import ParallelPlan, groups, program
from resihp_trainer.accelerator import HOST
from resihp_trainer.data import documents
from resihp_trainer.evaluation import evaluate
from resihp_trainer.reference import held_out_of
from support.thread_groups import ThreadGroup, run_ranks
from support.trainer_cases import HEALTHY, SPEC, small_job
from support.trainer_programs import dense_loss_of, interpreter_of

STANDBY = 8


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    paragraphs = (f"Paragraph {n} says {n * n} to whoever reads it, and {n**3} to the rest." for n in range(90))
    (tmp_path / "held_out.txt").write_text("\n\n".join(paragraphs))
    return small_job(9, evaluation={"every": 3, "path": str(tmp_path / "held_out.txt"), "batches": 2})


def run(spec: JobSpec, plan: ParallelPlan, committed: int) -> tuple[dict[int, dict[str, float]], list[Evaluated]]:
    """What `evaluate` returns on each rank, and what was said."""
    said: list[Evaluated] = []
    corpus = held_out_of(spec)

    def body(rank: int, built: Mapping[str, ThreadGroup]) -> dict[str, float]:
        works = plan.position(rank) is not None
        active: Any = SimpleNamespace(
            plan=plan,
            world=built["world"],
            interpreter=interpreter_of(plan, rank, built)[0] if works else None,
            ops=program(plan).ops[rank] if works else (),
        )
        context: Any = SimpleNamespace(
            rank=rank,
            spec=spec,
            model=SPEC,
            held_out=corpus,
            clock=lambda: 0.0,
            accelerator=HOST,
            send=said.append,
            communicator=SimpleNamespace(settle=lambda epoch: None),
        )
        return evaluate(context, active, committed)

    return run_ranks(groups(plan, SPEC), body), said


def test_the_loss_is_that_of_one_device_and_one_rank_says_it(spec: JobSpec) -> None:
    plan = dataclasses.replace(HEALTHY.with_epoch(4), standby=(STANDBY,))
    found, said = run(spec, plan, 6)
    assert found.keys() == {*range(8), STANDBY}
    assert all(phases.keys() == {"evaluation"} for phases in found.values())
    (one,) = said
    corpus = held_out_of(spec)
    assert corpus is not None
    batches = [documents(corpus, spec.batch, spec.seed, n) for n in (1, 2)]
    assert (one.epoch, one.iteration, one.tokens) == (4, 6, sum(b.num_tokens for b in batches))
    expected = sum(dense_loss_of(b) for b in batches) / one.tokens
    assert one.loss == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("committed", [0, 1, 4, 8])
def test_nothing_happens_when_it_is_not_due(spec: JobSpec, committed: int) -> None:
    found, said = run(spec, HEALTHY, committed)
    assert all(phases == {} for phases in found.values())
    assert not said


def test_it_needs_a_text_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"evaluation\.every needs evaluation\.path"):
        EvaluationConfig(every=5)
    assert held_out_of(small_job(1)) is None
