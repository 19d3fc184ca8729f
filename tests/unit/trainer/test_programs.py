"""One iteration's gradients under every kind of program, on groups of threads: equal to those of one dense device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from resihp_plan import (
    GroupKind,
    Migration,
    OpKind,
    ParallelPlan,
    Schedule,
    check_program,
    gradient_buckets,
    group_name,
    groups,
    layout,
    program,
    slice_batch,
    validate,
)
from resihp_trainer.comm.port import WaitSeconds
from resihp_trainer.data import Batch, documents
from resihp_trainer.gradients import Gradients, GradientSync
from resihp_trainer.interpreter import Interpreter, Waits, Work
from resihp_trainer.model import MicroBatch, Stage, TensorParallel, WeightGradients
from resihp_trainer.pipeline import Pipeline
from resihp_trainer.reference import corpus_of
from resihp_trainer.shards import ShardSet, narrow
from support.thread_groups import ThreadGroup, run_ranks
from support.trainer_cases import BATCH, HEALTHY, SPEC, replica, small_job, stage

MIGRATIONS = (
    Migration(0, 0, 0, 1),  # the first stage only: activations come back
    Migration(0, 1, 1, 1),  # the last stage only: the executor answers for its documents
    Migration(1, 0, 0, 0),  # a whole micro-batch, and units in both directions at once
    Migration(1, 1, 0, 0),
)
NO_HEADS = (
    replica(3, stage(0, 2, [0, 1, 2], [3, 3, 1]), stage(2, 4, [3])),
    replica(3, stage(0, 2, [4, 5]), stage(2, 4, [6, 7], [9, 1])),
)
"""Ranks 2 and 7 hold MLP blocks only. Units migrate between TP 3 and TP 2, TP 1 and TP 2."""
LATE = (
    replica(2, stage(0, 2, [0]), stage(2, 4, [1])),
    replica(4, stage(0, 2, [2]), stage(2, 3, [3]), stage(3, 4, [4])),
)
"""Equal layers in the first stage only."""
PLANS = {
    "migrations": ParallelPlan(1, HEALTHY.replicas, migrations=MIGRATIONS),
    "zero bubble": ParallelPlan(1, HEALTHY.replicas, schedule=Schedule.ZB_H1),
    "no heads": ParallelPlan(1, NO_HEADS, migrations=MIGRATIONS),
    "all together": ParallelPlan(1, NO_HEADS, migrations=MIGRATIONS, schedule=Schedule.ZB_H1),
    "unequal depth": ParallelPlan(1, LATE, migrations=(Migration(1, 0, 2, 0),), schedule=Schedule.ZB_H1),
    "drained replica": ParallelPlan(
        1, HEALTHY.replicas, migrations=tuple(Migration(0, s, m, 1) for s in (0, 1) for m in range(3))
    ),
}


@cache
def batch() -> Batch:
    return documents(corpus_of(small_job(1)), BATCH, 7, 1)


@cache
def dense() -> Mapping[str, Tensor]:
    """Gradient sums of the whole batch on one device."""
    alone = ParallelPlan(0, (replica(1, stage(0, SPEC.num_layers, [0])),))
    held = ShardSet.initial(layout(alone, SPEC), 0, seed=1, dtype=torch.float64, tick=lambda: None)
    leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
    torch.autograd.backward(
        Stage(SPEC, 0, SPEC.num_layers, leaves, TensorParallel()).forward(MicroBatch.of(batch().texts), None)
    )
    return {name: p.grad for name, p in leaves.items() if p.grad is not None}


def run_rank(plan: ParallelPlan, rank: int, built: Mapping[str, ThreadGroup]) -> tuple[Work, Gradients]:
    """What a worker does between the batch and the vote."""
    position = plan.position(rank)
    assert position is not None
    here = plan.replicas[position[0]].stages[position[1]]
    tp_group = built[group_name(GroupKind.TP, here.ranks)] if len(here.ranks) > 1 else None
    held = ShardSet.initial(layout(plan, SPEC), rank, seed=1, dtype=torch.float64, tick=lambda: None)
    leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
    later = WeightGradients() if plan.schedule is Schedule.ZB_H1 else None
    layers = here.layer_start, here.layer_stop
    model = Stage(SPEC, *layers, leaves, TensorParallel(tp_group), held.vocab_start, later.linear if later else linear)
    pipeline = Pipeline(plan, rank, built, tp_group, SPEC.hidden, torch.float64)
    interpreter = Interpreter(model, pipeline, leaves, Waits(WaitSeconds), lambda: None, weight_gradients=later)
    ops = program(plan).ops[rank]
    sliced = slice_batch(batch().documents, plan, SPEC, tokens_per_micro_batch=BATCH.tokens_per_micro_batch)
    units = {
        (op.replica, op.micro_batch): MicroBatch.of(
            [batch().texts[i] for i in sliced.micro_batches[op.replica][op.micro_batch]]
        )
        for op in ops
        if op.kind is OpKind.FORWARD
    }
    work = interpreter.run(ops, units, lambda: None)
    sync = GradientSync(held, [b for b in gradient_buckets(plan, SPEC) if rank in b.owners], built)
    sync.launch(interpreter.gradients())
    return work, sync.finish(1)


@pytest.mark.parametrize("name", PLANS)
def test_gradients_are_those_of_one_dense_device(name: str) -> None:
    plan = PLANS[name]
    validate(plan, SPEC, num_micro_batches=plan.num_micro_batches)
    check_program(program(plan), plan)
    results = run_ranks(groups(plan, SPEC), lambda rank, built: run_rank(plan, rank, built))
    held = layout(plan, SPEC)
    expected = dense()
    for rank, (_, gradients) in results.items():
        for tensor, found in gradients.sums.items():
            mine = narrow(held, tensor, expected[tensor], held.shards(rank)[tensor])
            torch.testing.assert_close(found, mine, rtol=0, atol=1e-11)
    norm_sq = sum(g.norm_sq for _, g in results.values())
    assert norm_sq == pytest.approx(float(sum((g**2).sum() for g in expected.values())), rel=1e-11)


@pytest.mark.parametrize("name", ["migrations", "all together"])
def test_every_micro_batch_is_answered_for_once_by_its_executor(name: str) -> None:
    plan = PLANS[name]
    results = run_ranks(groups(plan, SPEC), lambda rank, built: run_rank(plan, rank, built))
    last = [plan.replicas[a].stages[-1].ranks[0] for a in (0, 1)]
    first, second = (sorted(results[rank][0].finished) for rank in last)
    assert first == [(0, 0), (0, 2), (1, 0)]
    assert second == [(0, 1), (1, 1), (1, 2)]
    for rank, (work, _) in results.items():
        position = plan.position(rank)
        assert position is not None
        assert len(work.forwards) == plan.num_units(*position[:2])
        split = plan.schedule is Schedule.ZB_H1
        assert len(work.by_unit(OpKind.BACKWARD_WEIGHT)) == (len(work.forwards) if split else 0)
        assert work.tokens == sum(s.tokens for s in work.forwards) > 0
