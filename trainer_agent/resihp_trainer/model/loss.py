"""Vocabulary-parallel cross entropy: the logits of one token lie on several ranks and are never gathered.

Shapes: T tokens, V local vocabulary entries (may be 0).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as fn

from resihp_trainer.model.parallel import TensorParallel


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, targets_T: Tensor, vocab_start: int, tp: TensorParallel) -> Tensor:
        num_tokens, size = logits_TV.shape
        top_T = logits_TV.amax(dim=1) if size else logits_TV.new_full((num_tokens,), -torch.inf)
        tp.reduce(top_T, "max")
        shifted_TV = logits_TV - top_T[:, None]
        exp_TV = shifted_TV.exp()
        mine_T = (targets_T >= vocab_start) & (targets_T < vocab_start + size)
        local_T = torch.where(mine_T, targets_T - vocab_start, 0)
        sums = logits_TV.new_zeros(2, num_tokens)  # one all-reduce for both the denominators and the targets' logits
        sums[0] = exp_TV.sum(dim=1)
        if size:
            sums[1] = shifted_TV.gather(1, local_T[:, None])[:, 0] * mine_T
        tp.reduce(sums)
        ctx.save_for_backward(exp_TV.div_(sums[0][:, None]), local_T, mine_T)
        return (sums[0].log() - sums[1]).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        softmax_TV, local_T, mine_T = ctx.saved_tensors
        grad_TV = softmax_TV.clone()
        if grad_TV.shape[1]:
            grad_TV.scatter_add_(1, local_T[:, None], -mine_T[:, None].to(grad_TV.dtype))
        return grad_TV.mul_(grads[0]), None, None, None


def cross_entropy_sum(logits_TV: Tensor, targets_T: Tensor, vocab_start: int, tp: TensorParallel) -> Tensor:
    """Sum over tokens of -log p(target), in nats; the same scalar on every rank of the group.

    `logits_TV` are this rank's columns, beginning at vocabulary entry `vocab_start`.
    """
    if tp.group is None:
        tp.tick()
        return fn.cross_entropy(logits_TV, targets_T, reduction="sum")
    loss: Tensor = _CrossEntropy.apply(logits_TV, targets_T, vocab_start, tp)  # type: ignore[no-untyped-call]
    return loss
