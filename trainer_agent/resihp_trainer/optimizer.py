"""AdamW (Loshchilov & Hutter 2019, algorithm 2), in place on shards.

Every step is one correctly rounded elementwise operation: no fused multiply-add, whose rounding depends on whether an
element falls into the vectorised part of a loop. So replicas that cut a tensor differently still end with equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from resihp_messages import OptimizerConfig
from resihp_trainer.shards import Shard, ShardSet


def clip_factor(norm: float, tokens: float, clip_norm: float) -> float:
    """Factor that turns gradient sums of global L2 norm `norm` into the mean over `tokens`, of norm at most `clip_norm`
    (0: not clipped)."""
    if clip_norm <= 0:
        return 1.0 / tokens
    return min(1.0, clip_norm / (norm / tokens + 1e-6)) / tokens  # the 1e-6 as in torch.nn.utils.clip_grad_norm_


def learning_rate(step: int, config: OptimizerConfig) -> float:
    """Of optimizer step `step`, counted from 1: linear warm-up, then a half cosine down to `lr_floor * lr`.

    >>> config = OptimizerConfig(lr=1.0, warmup=4, cosine_until=8)
    >>> [round(learning_rate(k, config), 2) for k in (1, 2, 4, 6, 8, 9)]
    [0.25, 0.5, 1.0, 0.55, 0.1, 0.1]
    """
    if step < config.warmup:
        return config.lr * step / config.warmup
    if not config.cosine_until:
        return config.lr
    done = min(1.0, (step - config.warmup) / (config.cosine_until - config.warmup))
    return config.lr * (config.lr_floor + (1.0 - config.lr_floor) * 0.5 * (1.0 + math.cos(math.pi * done)))


@dataclass(frozen=True)
class Update:
    """The numbers of one AdamW step, equal for all tensors. Factors of several operations are merged where that saves
    one on every element."""

    gradient: float
    """From gradient sums to what joins the first moment."""
    square: float
    """From gradient sums to the root of what joins the second moment."""
    beta1: float
    beta2: float
    decayed: float
    """What decay leaves of a parameter."""
    rate: float
    """Learning rate, with the corrections of both moments' bias."""
    eps: float
    """As corrected as the second moment's root that it is added to."""

    @classmethod
    def of(cls, step: int, config: OptimizerConfig, factor: float = 1.0) -> Update:
        """Step `step`, counted from 1, on `factor` times the gradient that is given."""
        lr, root = learning_rate(step, config), math.sqrt(1.0 - config.beta2**step)
        return cls(
            gradient=factor * (1.0 - config.beta1),
            square=factor * math.sqrt(1.0 - config.beta2),
            beta1=config.beta1,
            beta2=config.beta2,
            decayed=1.0 - lr * config.weight_decay,
            rate=lr * root / (1.0 - config.beta1**step),
            eps=config.eps * root,
        )


@torch.no_grad()
def adamw(shard: Shard, gradient: Tensor, update: Update, *, decay: bool) -> None:
    """Update one shard. `gradient` keeps its contents."""
    parameter, m, v = shard.state
    if decay:
        parameter.mul_(update.decayed)
    scratch = gradient * update.gradient
    m.mul_(update.beta1).add_(scratch)
    torch.mul(gradient, update.square, out=scratch)
    v.mul_(update.beta2).add_(scratch.mul_(scratch))
    torch.sqrt(v, out=scratch)
    torch.div(m, scratch.add_(update.eps), out=scratch)
    parameter.sub_(scratch.mul_(update.rate))


def apply_step(
    held: ShardSet,
    gradients: Mapping[str, Tensor],
    factor: float,
    step: int,
    config: OptimizerConfig,
    halfway: Callable[[], None] | None = None,
) -> None:
    """Update every shard with `factor` times its gradient sum. No waits: a rank that begins it completes it, or dies.

    Norms and biases are not decayed. `halfway` is called between two tensors (a scripted fault strikes there).
    """
    update, names = Update.of(step, config, factor), list(held.shards)
    for i, name in enumerate(names):
        if halfway is not None and i == len(names) // 2:
            halfway()
        decay = len(held.layout.tensors[name].shape) > 1
        adamw(held.shards[name], gradients[name], update, decay=decay)
