"""AdamW against torch's, clipping against torch's, and equal bits however a tensor is cut."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from resihp_messages import OptimizerConfig
from resihp_plan import layout
from resihp_trainer.optimizer import Update, adamw, apply_step, clip_factor, learning_rate
from resihp_trainer.shards import Shard, ShardSet
from support.trainer_cases import HEALTHY, SPEC

CONFIG = OptimizerConfig(lr=1e-2, weight_decay=0.3)


def fresh(parameter: torch.Tensor) -> Shard:
    return Shard(parameter.clone(), torch.zeros_like(parameter), torch.zeros_like(parameter))


@pytest.mark.parametrize("decay", [True, False])
def test_equals_torch(decay: bool) -> None:
    torch.manual_seed(0)
    start = torch.randn(7, 5, dtype=torch.float64)
    shard, other = fresh(start), start.clone().requires_grad_()
    optimizer = torch.optim.AdamW(
        [other],
        lr=CONFIG.lr,
        betas=(CONFIG.beta1, CONFIG.beta2),
        eps=CONFIG.eps,
        weight_decay=CONFIG.weight_decay if decay else 0.0,
        foreach=False,
    )
    for step in range(1, 8):
        gradient = torch.randn(7, 5, dtype=torch.float64) * 10.0 ** (step - 5)
        adamw(shard, gradient, Update.of(step, CONFIG), decay=decay)
        other.grad = gradient
        optimizer.step()
        torch.testing.assert_close(shard.parameter, other.detach(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cut_tensors_end_with_the_same_bits(dtype: torch.dtype) -> None:
    """Odd sizes, so that every cut moves elements between vectorised loops and their remainders."""
    torch.manual_seed(0)
    start, gradients = torch.randn(301, dtype=dtype), torch.randn(5, 301, dtype=dtype)
    whole = fresh(start)
    for step, gradient in enumerate(gradients, 1):
        adamw(whole, gradient, Update.of(step, CONFIG), decay=True)
    for a, b in ((0, 1), (1, 8), (3, 30), (30, 301)):
        part = fresh(start[a:b])
        for step, gradient in enumerate(gradients, 1):
            adamw(part, gradient[a:b].contiguous(), Update.of(step, CONFIG), decay=True)
        for mine, theirs in zip(part.state, whole.state, strict=True):
            assert torch.equal(mine, theirs[a:b])


@pytest.mark.parametrize("norm", [0.1, 1.0, 50.0])
def test_clipping_equals_torch(norm: float) -> None:
    tokens = 10
    direction = torch.tensor([3.0, 4.0], dtype=torch.float64) / 5
    other = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    other.grad = direction * norm
    torch.nn.utils.clip_grad_norm_([other], 1.0)
    factor = clip_factor(norm * tokens, tokens, 1.0)
    torch.testing.assert_close(direction * norm * tokens * factor, other.grad, rtol=1e-12, atol=0)


def test_no_clipping() -> None:
    assert clip_factor(1e9, 10, 0.0) == 0.1


def test_norms_are_not_decayed_and_gradients_survive() -> None:
    held = ShardSet.initial(layout(HEALTHY, SPEC), 0, seed=1, dtype=torch.float64, tick=lambda: None)
    gradients = {name: torch.zeros_like(p) for name, p in held.parameters.items()}
    gradients["layers.0.wq.weight"] += 2.0
    before = {name: p.clone() for name, p in held.parameters.items()}
    calls: list[int] = []
    apply_step(held, gradients, 0.5, 1, CONFIG, lambda: calls.append(1))
    assert calls == [1]
    assert torch.equal(held.parameters["layers.0.attn_norm.weight"], before["layers.0.attn_norm.weight"])
    shrunk = before["layers.0.wk.weight"] * (1 - CONFIG.lr * CONFIG.weight_decay)
    assert torch.equal(held.parameters["layers.0.wk.weight"], shrunk)
    assert torch.equal(gradients["layers.0.wq.weight"], torch.full_like(gradients["layers.0.wq.weight"], 2.0))
    first_moment = held.shards["layers.0.wq.weight"].exp_avg
    torch.testing.assert_close(first_moment, torch.full_like(first_moment, 0.1))


def test_learning_rate_rises_then_follows_the_cosine() -> None:
    config = OptimizerConfig(lr=2.0, warmup=10, cosine_until=110, lr_floor=0.05)
    rates = [learning_rate(k, config) for k in range(1, 151)]
    assert rates[:10] == pytest.approx([0.2 * k for k in range(1, 11)])
    assert rates[59] == pytest.approx(2.0 * (0.05 + 0.95 / 2))  # half way down
    assert all(a > b for a, b in itertools.pairwise(rates[9:110]))
    assert rates[109:] == pytest.approx([0.1] * 41)
    assert {learning_rate(k, OptimizerConfig(lr=3.0)) for k in (1, 10, 10_000)} == {3.0}


def test_biases_are_not_decayed() -> None:
    biased = dataclasses.replace(SPEC, qkv_bias=True)
    held = ShardSet.initial(layout(HEALTHY, biased), 0, seed=1, dtype=torch.float64, tick=lambda: None)
    held.parameters["layers.0.wq.bias"].fill_(0.5)
    apply_step(held, {name: torch.zeros_like(p) for name, p in held.parameters.items()}, 1.0, 1, CONFIG)
    assert set(held.parameters["layers.0.wq.bias"].tolist()) == {0.5}
