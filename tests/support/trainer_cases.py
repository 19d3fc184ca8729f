"""A small job for the trainer's tests: its plans, and the parameters that it must end with."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import cache

import torch

from resihp_messages import BatchConfig, JobSpec, ModelConfig
from resihp_messages.link import Finished
from resihp_plan import Cluster, ModelSpec, ParallelPlan, ReplicaPlan, StagePlan, Workload
from resihp_plan.planner import plan_after_loss, plan_initial
from resihp_trainer.data import documents
from resihp_trainer.reference import Reference, corpus_of, train_reference
from resihp_trainer.result import assemble
from resihp_trainer.trials.trainer_job import TrainerJob, result_folder

MODEL = ModelConfig(num_layers=4, hidden=32, num_heads=8, num_kv_heads=4, ffn_hidden=96, vocab_size=256)
SPEC = ModelSpec(**MODEL.model_dump())
BATCH = BatchConfig(micro_batches=6, tokens_per_micro_batch=48)
HEALTHY = plan_initial(Cluster.of(8), SPEC, 2, 2, 2, BATCH.micro_batches)


def small_job(iterations: int, **changes: object) -> JobSpec:
    """TP 2 x PP 2 x DP 2 in float64."""
    return JobSpec.model_validate(
        {"iterations": iterations, "dtype": "float64", "model": MODEL, "batch": BATCH, **changes}
    )


def stage(start: int, stop: int, ranks: Collection[int], weights: Collection[int] | None = None) -> StagePlan:
    return StagePlan(start, stop, tuple(ranks), tuple(weights or [1] * len(ranks)))


def replica(num_micro_batches: int, *stages: StagePlan) -> ReplicaPlan:
    return ReplicaPlan(stages, num_micro_batches)


def plan_without(
    plan: ParallelPlan, dead: Collection[int], state_plan: ParallelPlan | None = None, *, require_state: bool = True
) -> ParallelPlan:
    """What the planner does after a loss."""
    alive = set(plan.world) - set(dead)
    workload = Workload.typical(BATCH.micro_batches, BATCH.tokens_per_micro_batch)
    cluster = Cluster.of(max(plan.world) + 1)
    return plan_after_loss(
        plan, SPEC, cluster, alive, workload, clock=time.monotonic, state_plan=state_plan, require_state=require_state
    ).plan


@cache
def undisturbed(iterations: int) -> Reference:
    return train_reference(small_job(iterations))


def assert_undisturbed(job: TrainerJob) -> None:
    """The job ended complete: every document used once, replicas equal, parameters as in an undisturbed run."""
    iterations = job.spec.iterations
    found = assemble(result_folder(job), job.last_plan, SPEC)
    assert found.committed == iterations
    assert found.are_equal
    reference = undisturbed(iterations).held.parameters
    worst = max(
        float((whole[name] - parameter).abs().nan_to_num(nan=torch.inf).max())
        for whole in found.replicas
        for name, parameter in reference.items()
    )
    assert worst <= 1e-11, worst
    corpus = corpus_of(job.spec)
    expected = sum(len(documents(corpus, job.spec.batch, job.spec.seed, k).documents) for k in range(1, iterations + 1))
    finished = job.all(Finished)
    assert {rank for rank, _ in finished} == set(job.last_plan.world)
    for _, said in finished:
        assert (said.committed, said.samples_expected, said.samples_once) == (iterations, expected, expected)
