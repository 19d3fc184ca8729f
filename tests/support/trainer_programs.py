"""One iteration's gradients of any plan on groups of threads, and those of one dense device to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from resihp_plan import (
    GroupKind,
    ModelSpec,
    OpKind,
    ParallelPlan,
    Schedule,
    gradient_buckets,
    group_name,
    layout,
    program,
    slice_batch,
)
from resihp_trainer.comm.port import WaitSeconds
from resihp_trainer.data import Batch, documents
from resihp_trainer.gradients import Gradients, GradientSync
from resihp_trainer.interpreter import Interpreter, Waits, Work
from resihp_trainer.model import MicroBatch, Stage, TensorParallel, WeightGradients, linear_of
from resihp_trainer.pipeline import Pipeline
from resihp_trainer.reference import corpus_of
from resihp_trainer.shards import ShardSet
from support.thread_groups import ThreadGroup
from support.trainer_cases import BATCH, SPEC, replica, small_job, stage

SEED = 1


@cache
def batch() -> Batch:
    return documents(corpus_of(small_job(1)), BATCH, 7, 1)


@cache
def dense(model: ModelSpec = SPEC, dtype: torch.dtype = torch.float64) -> Mapping[str, Tensor]:
    """Gradient sums of the whole batch on one device, in one micro-batch."""
    whole, leaves = _dense_stage(model, dtype)
    torch.autograd.backward(whole.forward(batch().micro_batch(range(len(batch().texts))), None))
    return {name: p.grad for name, p in leaves.items() if p.grad is not None}


def dense_loss(model: ModelSpec = SPEC) -> float:
    """Of the whole batch on one device, summed."""
    return dense_loss_of(batch(), model)


def dense_loss_of(whole: Batch, model: ModelSpec = SPEC) -> float:
    """Of any batch on one device in float64, summed."""
    stage, _ = _dense_stage(model, torch.float64)
    return float(stage.forward(whole.micro_batch(range(len(whole.texts))), None).detach())


def _dense_stage(model: ModelSpec, dtype: torch.dtype) -> tuple[Stage, Mapping[str, Tensor]]:
    alone = ParallelPlan(0, (replica(1, stage(0, model.num_layers, [0])),))
    held = ShardSet.initial(layout(alone, model), 0, seed=SEED, dtype=dtype, tick=lambda: None)
    leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
    linear = linear_of(None, autocast=model.autocast)
    return Stage(model, 0, model.num_layers, leaves, TensorParallel(), linear=linear, seed=SEED), leaves


def run_rank(
    plan: ParallelPlan,
    rank: int,
    built: Mapping[str, ThreadGroup],
    model: ModelSpec = SPEC,
    dtype: torch.dtype = torch.float64,
) -> tuple[Work, Gradients]:
    """What a worker does between the batch and the vote."""
    interpreter, held = interpreter_of(plan, rank, built, model, dtype)
    work = interpreter.run(program(plan).ops[rank], units_of(plan, rank, model), lambda: None)
    sync = GradientSync(held, [b for b in gradient_buckets(plan, model) if rank in b.owners], built)
    sync.launch(interpreter.gradients())
    return work, sync.finish(1)


def interpreter_of(
    plan: ParallelPlan,
    rank: int,
    built: Mapping[str, ThreadGroup],
    model: ModelSpec = SPEC,
    dtype: torch.dtype = torch.float64,
) -> tuple[Interpreter, ShardSet]:
    """As a worker has it after it has installed the plan."""
    position = plan.position(rank)
    assert position is not None
    here = plan.replicas[position[0]].stages[position[1]]
    tp_group = built[group_name(GroupKind.TP, here.ranks)] if len(here.ranks) > 1 else None
    held = ShardSet.initial(layout(plan, model), rank, seed=SEED, dtype=dtype, tick=lambda: None)
    leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
    later = WeightGradients() if plan.schedule is Schedule.ZB_H1 else None
    layers = here.layer_start, here.layer_stop
    linear = linear_of(later, autocast=model.autocast)
    own = Stage(model, *layers, leaves, TensorParallel(tp_group), held.vocab_start, linear, SEED)
    pipeline = Pipeline(plan, rank, built, tp_group, model.hidden, dtype)
    interpreter = Interpreter(own, pipeline, leaves, Waits(WaitSeconds), lambda: None, weight_gradients=later)
    return interpreter, held


def units_of(plan: ParallelPlan, rank: int, model: ModelSpec) -> dict[tuple[int, int], MicroBatch]:
    """(replica, micro-batch) -> documents of every unit that `rank` executes."""
    sliced = slice_batch(batch().documents, plan, model, tokens_per_micro_batch=BATCH.tokens_per_micro_batch)
    return {
        (op.replica, op.micro_batch): batch().micro_batch(sliced.micro_batches[op.replica][op.micro_batch])
        for op in program(plan).ops[rank]
        if op.kind is OpKind.FORWARD
    }
