"""Activation checkpointing (Chen et al. 2016): keep a block's input, compute the block again for its backward.

Our own twenty lines instead of `torch.utils.checkpoint`, which imports the compiler at its first call: measured 2.3 s
without a sign of life and 800 modules in every worker. The block runs its collectives again; all members of a
tensor-parallel group do so at the same point, so their order stays the same on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _Recomputed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.block = block
        return block(x)  # without a graph: gradients are off in here

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():  # as in the interpreter: the gradient of sum(out * g) is g, exactly
            total = torch.sum(ctx.block(x) * grads[0])
        torch.autograd.backward(total)
        return x.grad, None


def recomputed(block: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`block(x)`, of which only `x` is kept. `block` is pure; the gradients of its parameters, autograd leaves, are
    added to their `grad` as usual. `x` must require a gradient."""
    out: Tensor = _Recomputed.apply(x, block)  # type: ignore[no-untyped-call]
    return out
