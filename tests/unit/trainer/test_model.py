"""The decoder: equal to a dense model for any shards, documents isolated, losses and norms as defined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from resihp_plan import GroupKind, GroupSpec, ModelSpec, ParallelPlan, layout
from resihp_trainer.model import MicroBatch, Stage, TensorParallel, WeightGradients, accumulate, initial_tensor
from resihp_trainer.model.layers import rms_norm
from resihp_trainer.model.loss import cross_entropy_sum
from resihp_trainer.model.rotary import rotary_frequencies, rotary_tables, rotate
from resihp_trainer.shards import ShardSet, narrow
from support.thread_groups import ThreadGroup, run_ranks
from support.trainer_cases import SPEC, replica, stage

LENGTHS = (7, 1, 12, 3)


def micro_batch(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> MicroBatch:
    rng = np.random.default_rng(seed)
    return MicroBatch.of([rng.integers(0, 256, n + 1, dtype=np.uint8) for n in lengths])


def loss_and_gradients(
    plan: ParallelPlan, rank: int, groups: Mapping[str, ThreadGroup], batch: MicroBatch, dtype: torch.dtype
) -> tuple[float, dict[str, Tensor]]:
    """Forward and backward of a one-stage replica on `rank`."""
    held = ShardSet.initial(layout(plan, SPEC), rank, seed=1, dtype=dtype, tick=lambda: None)
    leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
    model = Stage(SPEC, 0, SPEC.num_layers, leaves, TensorParallel(groups.get("tp")), held.vocab_start)
    loss = model.forward(batch, None)
    torch.autograd.backward(loss)
    return float(loss.detach()), {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in leaves.items()}


def one_stage(weights: tuple[int, ...]) -> ParallelPlan:
    return ParallelPlan(1, (replica(1, stage(0, SPEC.num_layers, range(len(weights)), weights)),))


@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1), (3, 1), (2, 1, 1), (1, 1, 1, 1), (5, 0, 1)])
def test_any_tensor_split_equals_the_dense_model(weights: tuple[int, ...]) -> None:
    batch = micro_batch()
    dense_loss, dense = loss_and_gradients(one_stage((1,)), 0, {}, batch, torch.float64)
    plan = one_stage(weights)
    spec = GroupSpec("tp", GroupKind.TP, tuple(range(len(weights))))
    results = run_ranks([spec], lambda rank, groups: loss_and_gradients(plan, rank, groups, batch, torch.float64))
    held = layout(plan, SPEC)
    for rank, (loss, gradients) in results.items():
        assert loss == pytest.approx(dense_loss, rel=1e-13)
        assert set(gradients) == set(dense)
        for name, gradient in gradients.items():
            expected = narrow(held, name, dense[name], held.shards(rank)[name])
            torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    norms = [n for n in dense if "norm" in n]
    for name in norms:  # replicated: the same bits on every member
        assert all(torch.equal(results[0][1][name], g[name]) for _, g in results.values())


@pytest.mark.parametrize("weights", [(1,), (2, 1, 1), (5, 0, 1)])
def test_split_backward_adds_up_to_the_whole_one(weights: tuple[int, ...]) -> None:
    """The input half touches no weight of a linear layer; with the weight half the gradients are those of a whole
    backward, also for a member without heads, and also as a sum over two micro-batches in another order."""
    batches = micro_batch(), micro_batch((5, 9), seed=1)
    plan = one_stage(weights)

    def body(rank: int, groups: Mapping[str, ThreadGroup]) -> None:
        whole = [loss_and_gradients(plan, rank, groups, batch, torch.float64)[1] for batch in batches]
        held = ShardSet.initial(layout(plan, SPEC), rank, seed=1, dtype=torch.float64, tick=lambda: None)
        leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
        later, tp = WeightGradients(), TensorParallel(groups.get("tp"))
        model = Stage(SPEC, 0, SPEC.num_layers, leaves, tp, held.vocab_start, later.linear)
        products = []
        for batch in batches:
            torch.autograd.backward(model.forward(batch, None))
            products.append(later.take())
        linear = {name for name in leaves if "norm" not in name and "embed" not in name}
        assert {name for name, p in leaves.items() if p.grad is None} == linear
        for left in reversed(products):
            accumulate(left)
        for name, p in leaves.items():  # a member without heads does not even multiply by its empty wk and wv
            gradient = p.grad if p.numel() else torch.zeros_like(p)
            torch.testing.assert_close(gradient, whole[0][name] + whole[1][name], rtol=0, atol=1e-12)

    members = range(len(weights))
    if len(weights) == 1:
        body(0, {})
    else:
        run_ranks([GroupSpec("tp", GroupKind.TP, tuple(members))], body)


def test_documents_do_not_see_each_other() -> None:
    """A packed micro-batch costs and teaches exactly what its documents do alone."""
    batch = micro_batch()
    packed, packed_gradients = loss_and_gradients(one_stage((1,)), 0, {}, batch, torch.float64)
    total, sums = 0.0, dict.fromkeys(packed_gradients, torch.zeros((), dtype=torch.float64))
    start = 0
    for n in LENGTHS:
        part = slice(start, start + n)
        alone = MicroBatch((n,), batch.inputs[part], batch.targets[part], batch.positions[part])
        loss, gradients = loss_and_gradients(one_stage((1,)), 0, {}, alone, torch.float64)
        total += loss
        sums = {name: sums[name] + g for name, g in gradients.items()}
        start += n
    assert packed == pytest.approx(total, rel=1e-13)
    for name, gradient in packed_gradients.items():
        torch.testing.assert_close(gradient, sums[name], rtol=0, atol=1e-12)


def test_a_token_does_not_see_its_future() -> None:
    held = ShardSet.initial(layout(one_stage((1,)), SPEC), 0, seed=1, dtype=torch.float64, tick=lambda: None)
    first = Stage(SPEC, 0, 2, held.parameters, TensorParallel())
    batch = micro_batch((10,))
    changed = batch.inputs.clone()
    changed[6:] = (changed[6:] + 1) % 256
    before = first.forward(batch, None)
    after = first.forward(MicroBatch(batch.lengths, changed, batch.targets, batch.positions), None)
    assert torch.equal(before[:6], after[:6])
    assert not torch.allclose(before[6:], after[6:])


def test_micro_batch_packs_inputs_targets_and_positions() -> None:
    batch = MicroBatch.of([np.array([1, 2, 3], np.uint8), np.array([9, 8], np.uint8)])
    assert batch.inputs.tolist() == [1, 2, 9]
    assert batch.targets.tolist() == [2, 3, 8]
    assert batch.positions.tolist() == [0, 1, 0]
    assert (batch.num_tokens, batch.sum_sq_len) == (3, 5)
    assert MicroBatch.of([]).num_tokens == 0


def test_rotation_depends_on_distance_only() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    positions = torch.tensor([0, 5, 100, 105])
    rotary = rotary_tables(positions, rotary_frequencies(ModelSpec(hidden=64, num_heads=8)), torch.float64)
    queries = rotate(q.expand(4, 1, 8), rotary)[:, 0]
    keys = rotate(k.expand(4, 1, 8), rotary)[:, 0]
    torch.testing.assert_close(queries.norm(dim=1), q.norm().expand(4))  # a rotation keeps lengths
    near, far = queries[1] @ keys[0], queries[3] @ keys[2]
    torch.testing.assert_close(near, far)  # both 5 apart
    assert not torch.isclose(near, queries[2] @ keys[0])


def test_rms_norm() -> None:
    x, weight = torch.randn(3, 16, dtype=torch.float64), torch.rand(16, dtype=torch.float64)
    expected = x / (x.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("cuts", [(0, 50), (0, 20, 50), (0, 0, 50), (0, 30, 30, 50)])
def test_vocabulary_parallel_cross_entropy(cuts: tuple[int, ...]) -> None:
    """Large logits too: the maximum is taken over all shards. A rank may own no entry."""
    torch.manual_seed(0)
    logits = torch.randn(9, 50, dtype=torch.float64) * 300
    targets = torch.randint(0, 50, (9,))
    dense = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(dense, targets, reduction="sum")
    (expected * 2).backward()

    def body(rank: int, groups: Mapping[str, ThreadGroup]) -> tuple[Tensor, Tensor]:
        shard = logits[:, cuts[rank] : cuts[rank + 1]].clone().requires_grad_()
        loss = cross_entropy_sum(shard, targets, cuts[rank], TensorParallel(groups["tp"]))
        (loss * 2).backward()
        assert shard.grad is not None
        return loss.detach(), shard.grad

    results = run_ranks([GroupSpec("tp", GroupKind.TP, tuple(range(len(cuts) - 1)))], body)
    assert dense.grad is not None
    for rank, (loss, gradient) in results.items():
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(gradient, dense.grad[:, cuts[rank] : cuts[rank + 1]])


def test_initial_tensors_depend_on_seed_and_name_only() -> None:
    specs = {t.name: t for t in SPEC.tensors}
    first = initial_tensor(specs["layers.0.wq.weight"], SPEC, 7, torch.float32)
    assert torch.equal(first, initial_tensor(specs["layers.0.wq.weight"], SPEC, 7, torch.float32))
    assert not torch.equal(first, initial_tensor(specs["layers.1.wq.weight"], SPEC, 7, torch.float32))
    assert not torch.equal(first, initial_tensor(specs["layers.0.wq.weight"], SPEC, 8, torch.float32))
    assert torch.equal(
        initial_tensor(specs["norm.weight"], SPEC, 7, torch.float64), torch.ones(32, dtype=torch.float64)
    )
    big = ModelSpec(num_layers=2)
    tensors = {t.name: initial_tensor(t, big, 7, torch.float64) for t in big.tensors}
    assert float(tensors["layers.0.wq.weight"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(tensors["layers.0.wo.weight"].std()) == pytest.approx(0.01, rel=0.05)


class AttentionPairs(TorchDispatchMode):
    """Counts (query, key) pairs that attention kernels are given."""

    pairs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in str(func):
            query, key = args[:2]
            self.pairs += query.shape[1] * query.shape[-2] * key.shape[-2]
        return func(*args, **(kwargs or {}))


def test_attention_work_grows_with_the_square_of_lengths() -> None:
    held = ShardSet.initial(layout(one_stage((1,)), SPEC), 0, seed=1, dtype=torch.float64, tick=lambda: None)
    model = Stage(SPEC, 0, SPEC.num_layers, held.parameters, TensorParallel())
    for lengths in ((64,), (16,) * 4, LENGTHS):
        batch = micro_batch(lengths)
        with AttentionPairs() as counter:
            model.forward(batch, None)
        assert counter.pairs == SPEC.num_layers * SPEC.num_heads * batch.sum_sq_len
