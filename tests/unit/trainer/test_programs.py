"""One iteration's gradients under every kind of program, on groups of threads: equal to those of one dense device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch

from resihp_plan import (
    Migration,
    ModelSpec,
    ParallelPlan,
    Schedule,
    check_program,
    groups,
    layout,
    program,
    validate,
)
from resihp_trainer.shards import narrow
from support.thread_groups import ThreadGroup, run_ranks
from support.trainer_cases import HEALTHY, SPEC, replica, stage
from support.trainer_programs import dense, dense_loss, interpreter_of, run_rank, units_of

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
    "more in flight": ParallelPlan(1, HEALTHY.replicas, schedule=Schedule.SLACK_2),
    "known speeds": ParallelPlan(
        1, NO_HEADS, migrations=MIGRATIONS, schedule=Schedule.SLACK_1, speeds=((1, 500), (5, 300))
    ),
    "drained replica": ParallelPlan(
        1, HEALTHY.replicas, migrations=tuple(Migration(0, s, m, 1) for s in (0, 1) for m in range(3))
    ),
}


MODELS = {
    "biases": dataclasses.replace(SPEC, qkv_bias=True, rope_scaling="llama3", rope_factor=8.0),
    "tied": dataclasses.replace(SPEC, tied_embeddings=True),
    "dropout": dataclasses.replace(SPEC, dropout=0.2),
    "recompute": dataclasses.replace(SPEC, recompute=True),
    "everything": dataclasses.replace(SPEC, qkv_bias=True, tied_embeddings=True, dropout=0.1, recompute=True),
}


@pytest.mark.parametrize("name", PLANS)
def test_gradients_are_those_of_one_dense_device(name: str) -> None:
    assert_dense(PLANS[name], SPEC)


@pytest.mark.parametrize("plan", ["no heads", "all together", "unequal depth"])
@pytest.mark.parametrize("model", MODELS)
def test_whatever_the_model_and_how_it_is_trained(model: str, plan: str) -> None:
    assert_dense(PLANS[plan], MODELS[model])


def test_a_recomputed_model_has_the_gradients_of_a_kept_one() -> None:
    kept, again = dense(SPEC), dense(MODELS["recompute"])
    assert all(torch.equal(kept[name], again[name]) for name in kept)


def assert_dense(plan: ParallelPlan, model: ModelSpec) -> None:
    validate(plan, model, num_micro_batches=plan.num_micro_batches)
    check_program(program(plan), plan)
    results = run_ranks(groups(plan, model), lambda rank, built: run_rank(plan, rank, built, model))
    held = layout(plan, model)
    expected = dense(model)
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
        columns, num_units = work.columns(), plan.num_units(*position[:2])
        assert len(columns.forward_s) == len(columns.tokens) == len(columns.sum_sq_len) == num_units
        assert columns.backward_s.keys() == columns.forward_s.keys()
        assert len(columns.weight_s) == (num_units if plan.schedule is Schedule.ZB_H1 else 0)
        assert min(columns.tokens) > 0


@pytest.mark.parametrize("plan", ["no heads", "all together"])
def test_autocast_stays_near_full_precision(plan: str) -> None:
    """Rounding to 8 bits, not more: gradients point where those of float32 point, and are stored in float32."""
    rounded, chosen = dataclasses.replace(SPEC, autocast=True), PLANS[plan]
    results = run_ranks(
        groups(chosen, rounded), lambda rank, built: run_rank(chosen, rank, built, rounded, torch.float32)
    )
    held, exact = layout(chosen, rounded), dense(SPEC, torch.float32)
    same = True
    for rank, (_, gradients) in results.items():
        for tensor, found in gradients.sums.items():
            mine = narrow(held, tensor, exact[tensor], held.shards(rank)[tensor])
            assert found.dtype is torch.float32
            if mine.any():  # a vocabulary shard may have no token of the batch
                assert float((found - mine).norm() / mine.norm()) < 0.03, tensor
                same &= torch.equal(found, mine)
    assert not same  # it did round


@pytest.mark.parametrize("name", ["migrations", "all together", "unequal depth"])
def test_evaluation_is_the_loss_of_one_dense_device(name: str) -> None:
    """Without dropout, whatever the training has; no parameter and no gradient sum is touched."""
    plan, model = PLANS[name], MODELS["everything"]
    validate(plan, model)

    def evaluated(rank: int, built: Mapping[str, ThreadGroup]) -> tuple[float, int]:
        interpreter, held = interpreter_of(plan, rank, built, model)
        before = {name: p.clone() for name, p in held.parameters.items()}
        work = interpreter.evaluate(program(plan).ops[rank], units_of(plan, rank, model))
        assert all(torch.equal(before[name], p) for name, p in held.parameters.items())
        assert all(leaf.grad is None for leaf in interpreter.leaves.values())
        position = plan.position(rank)
        assert position is not None
        return (work.loss, len(work.finished)) if position[2] == 0 else (0.0, 0)

    found = run_ranks(groups(plan, model), evaluated).values()
    assert sum(n for _, n in found) == sum(r.num_micro_batches for r in plan.replicas)
    expected = dense_loss(dataclasses.replace(model, dropout=0.0))
    assert sum(loss for loss, _ in found) == pytest.approx(expected, rel=1e-12)
