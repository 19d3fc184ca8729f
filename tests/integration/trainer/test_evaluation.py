"""The loss on held-out text beside training: the same in every layout, and training is as if it were not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from resihp_messages.link import Evaluated, IterationCommitted
from resihp_plan import Schedule
from resihp_trainer.data import documents
from resihp_trainer.model import Stage, TensorParallel
from resihp_trainer.reference import held_out_of, train_reference
from resihp_trainer.trials.trainer_job import TrainerJob
from support.trainer_cases import HEALTHY, SPEC, assert_undisturbed, plan_without, small_job

StartJob = Callable[..., TrainerJob]


@pytest.fixture
def held_out(tmp_path: Path) -> dict[str, object]:
    paragraphs = (f"Paragraph {n} says {n * n} to whoever reads it, and {n**3} to the rest." for n in range(90))
    (tmp_path / "held_out.txt").write_text("\n\n".join(paragraphs))
    return {"every": 2, "path": str(tmp_path / "held_out.txt"), "batches": 2}


def losses(job: TrainerJob) -> dict[int, set[float]]:
    """Iteration -> what was found after it, perhaps more than once, by whoever was the speaker."""
    found: dict[int, set[float]] = {}
    for _, said in job.all(Evaluated):
        assert said.loss is not None
        assert said.tokens > 0
        found.setdefault(said.iteration, set()).add(said.loss)
    return found


def expected(job: TrainerJob, iteration: int) -> float:
    """On one dense device, with the parameters of the undisturbed run."""
    spec = small_job(iteration, evaluation=job.spec.evaluation)
    corpus = held_out_of(spec)
    assert corpus is not None
    stage = Stage(SPEC, 0, SPEC.num_layers, train_reference(spec).held.parameters, TensorParallel())
    batches = [documents(corpus, spec.batch, spec.seed, n) for n in (1, 2)]
    loss = sum(float(stage.forward(b.micro_batch(range(len(b.documents))), None)) for b in batches)
    return loss / sum(b.num_tokens for b in batches)


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_over_a_planned_change_and_a_loss(start_job: StartJob, held_out: dict[str, object]) -> None:
    job = start_job(8, evaluation=held_out, faults=[{"kind": "kill", "rank": 3, "iteration": 6, "point": "gradient"}])
    job.install(HEALTHY, "initial")
    zero_bubble = dataclasses.replace(HEALTHY.with_epoch(2), schedule=Schedule.ZB_H1)

    def on_pump() -> None:
        if job.committed(0) >= 2 and len(job.plans) == 1:
            job.install(zero_bubble, "planned")

    job.run(lambda plan, dead: plan_without(plan, dead, state_plan=HEALTHY), on_pump)
    found = losses(job)
    assert sorted(found) == [2, 4, 6, 8]
    for iteration, values in found.items():
        (value,) = values  # the same on all ranks, to the bit
        assert value == pytest.approx(expected(job, iteration), rel=1e-10), iteration
    announced = {f.iteration for _, f in job.all(IterationCommitted) if "evaluation" in f.phases_s}
    assert announced == {3, 5, 7}  # in the report of the iteration that began later because of it
    assert_undisturbed(job)


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_deaths_in_it_cost_nothing(start_job: StartJob, held_out: dict[str, object]) -> None:
    """Evaluation after every iteration, and so long that most kills fall into it."""
    job = start_job(7, evaluation={**held_out, "every": 1, "batches": 6})
    job.install(HEALTHY, "initial")
    victims = {2: 1, 4: 6}

    def on_pump() -> None:
        for iteration, rank in list(victims.items()):
            if job.committed(0) >= iteration:
                job.kill(rank)
                del victims[iteration]

    job.run(lambda plan, dead: plan_without(plan, dead, state_plan=HEALTHY), on_pump)
    assert not victims
    assert set(job.dead) == {1, 6}
    assert sorted(losses(job)) == [1, 2, 3, 4, 5, 6, 7]
    assert_undisturbed(job)
