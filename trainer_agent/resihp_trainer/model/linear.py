"""Linear layers with the backward that the job wants: whole or split in two, in the parameters' precision or bfloat16.

Split backward: the gradient of the input now, that of the weight later (Qi et al. 2023, section 2). Autocast
(Micikevicius et al. 2018): operands are rounded to bfloat16, the weight's gradient comes in the weight's own precision.
Only the rounded input is kept for the backward, never a rounded copy of the weight.
Shapes: T tokens, I input width, O output width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as fn

Linear = Callable[[Tensor, Tensor], Tensor]
"""`torch.nn.functional.linear` without bias, or one of the variants of this module. The weight is an autograd leaf."""


@dataclass(frozen=True)
class Product:
    """A weight gradient that has not been computed: `grad.T @ input`, to be added to `weight.grad`."""

    weight: Tensor
    """[O, I], an autograd leaf."""
    input: Tensor
    """[T, I]."""
    grad: Tensor
    """[T, O]: gradient of the layer's output."""

    def compute(self) -> Tensor:
        """In the weight's precision."""
        return (self.grad.T @ self.input).to(self.weight.dtype)


@dataclass
class WeightGradients:
    """Collects what backward passes through `linear` leave to do. Used by one thread."""

    _open: list[Product] = field(default_factory=list)

    def linear(self, x_TI: Tensor, weight_OI: Tensor) -> Tensor:
        """A `Linear` whose backward computes only the gradient of `x_TI` and notes the rest here."""
        return _apply(x_TI, weight_OI, self, None)

    def note(self, product: Product) -> None:
        self._open.append(product)

    def take(self) -> tuple[Product, ...]:
        """What the backward passes since the last call have left, in their order."""
        taken, self._open = tuple(self._open), []
        return taken


def linear_of(later: WeightGradients | None, *, autocast: bool) -> Linear:
    """The job's linear layer: split backward if weight gradients are collected in `later`."""
    if autocast:
        return lambda x_TI, weight_OI: _apply(x_TI, weight_OI, later, torch.bfloat16)
    return later.linear if later is not None else fn.linear


def accumulate(products: Sequence[Product]) -> None:
    """Add the gradients to the leaves' `grad`."""
    for p in products:
        gradient_OI = p.compute()
        if p.weight.grad is None:
            p.weight.grad = gradient_OI
        else:
            p.weight.grad += gradient_OI


def _apply(x_TI: Tensor, weight_OI: Tensor, later: WeightGradients | None, dtype: torch.dtype | None) -> Tensor:
    out_TO: Tensor = _Linear.apply(x_TI, weight_OI, later, dtype)  # type: ignore[no-untyped-call]
    return out_TO


class _Linear(Function):
    @staticmethod
    def forward(
        ctx: Any, x_TI: Tensor, weight_OI: Tensor, later: WeightGradients | None, dtype: torch.dtype | None
    ) -> Tensor:
        rounded_TI = x_TI if dtype is None else x_TI.to(dtype)
        ctx.save_for_backward(rounded_TI)
        # The leaf itself, since its `grad` is what is added to. It holds no graph, so this is no cycle.
        ctx.weight_OI, ctx.later, ctx.x_dtype = weight_OI, later, x_TI.dtype
        return fn.linear(rounded_TI, weight_OI.to(rounded_TI.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (x_TI,) = ctx.saved_tensors
        product = Product(ctx.weight_OI, x_TI.detach(), grads[0].detach())
        weight_grad = None
        if ctx.later is not None:
            ctx.later.note(product)
        elif ctx.needs_input_grad[1]:
            weight_grad = product.compute()
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = torch.matmul(grads[0], ctx.weight_OI.detach().to(x_TI.dtype)).to(ctx.x_dtype)
        return x_grad, weight_grad, None, None
