"""Split backward: the gradient of a linear layer's input now, that of its weight later (Qi et al. 2023, section 2).

Shapes: T tokens, I input width, O output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as fn


@dataclass(frozen=True)
class Product:
    """A weight gradient that has not been computed: `grad.T @ input`, to be added to `weight.grad`."""

    weight: Tensor
    """[O, I], an autograd leaf."""
    input: Tensor
    """[T, I]."""
    grad: Tensor
    """[T, O]: gradient of the layer's output."""


@dataclass
class WeightGradients:
    """Collects what backward passes through `linear` leave to do. Used by one thread."""

    _open: list[Product] = field(default_factory=list)

    def linear(self, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        """`torch.nn.functional.linear` whose backward computes only the gradient of `x_TI` and notes the rest here.
        `weight_OI` is an autograd leaf."""
        out_TO: Tensor = _Linear.apply(x_TI, weight_OI, self)  # type: ignore[no-untyped-call]
        return out_TO

    def note(self, product: Product) -> None:
        self._open.append(product)

    def take(self) -> tuple[Product, ...]:
        """What the backward passes since the last call have left, in their order."""
        taken, self._open = tuple(self._open), []
        return taken


def accumulate(products: Sequence[Product]) -> None:
    """Add the gradients to the leaves' `grad`."""
    for p in products:
        gradient_OI = p.grad.T @ p.input
        if p.weight.grad is None:
            p.weight.grad = gradient_OI
        else:
            p.weight.grad += gradient_OI


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_OI: Tensor, later: WeightGradients) -> Tensor:
        ctx.save_for_backward(x_TI)
        # The leaf itself, since its `grad` is what is added to. It holds no graph, so this is no cycle.
        ctx.weight_OI, ctx.later = weight_OI, later
        return fn.linear(x_TI, weight_OI)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        (x_TI,) = ctx.saved_tensors
        ctx.later.note(Product(ctx.weight_OI, x_TI.detach(), grads[0].detach()))
        return (torch.matmul(grads[0], ctx.weight_OI.detach()) if ctx.needs_input_grad[0] else None), None, None
