"""Column- and row-parallel algebra: the conjugate operators f and g of Megatron-LM (Shoeybi et al. 2019, section 3).

f (`enter`) opens a region in which every rank of the tensor-parallel group works on its own columns: identity forward,
sum over the group backward. g (`leave`) closes it: sum forward, identity backward. Shards may have any sizes, also
different ones per rank: neither operator looks at them. Without a group both are the identity, and cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from resihp_trainer.comm.port import Group, ReduceOp


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class TensorParallel:
    """A rank's view of its tensor-parallel group; `group` is None for degree 1."""

    group: Group | None = None
    tick: Callable[[], None] = _nothing
    """Sign of life, called at least once per layer and direction."""

    def reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Tensor:
        """All-reduce `tensor` in place over the group and return it; the same bits on every rank."""
        self.tick()
        if self.group is not None:
            self.group.all_reduce(tensor, op).wait()
        return tensor


class _Enter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel) -> Tensor:
        ctx.tp = tp
        tp.tick()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # A copy: autograd may hand the same gradient tensor to another consumer.
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        return ctx.tp.reduce(grad), None


class _Leave(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel) -> Tensor:
        return tp.reduce(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def enter(x: Tensor, tp: TensorParallel) -> Tensor:
    """f: identity forward, all-reduce of the gradient backward."""
    if tp.group is None:
        tp.tick()
        if x.requires_grad:
            x.register_hook(lambda _: tp.tick())  # type: ignore[no-untyped-call]
        return x
    out: Tensor = _Enter.apply(x, tp)  # type: ignore[no-untyped-call]
    return out


def leave(x: Tensor, tp: TensorParallel) -> Tensor:
    """g: all-reduce forward, identity backward."""
    if tp.group is None:
        tp.tick()
        return x
    out: Tensor = _Leave.apply(x, tp)  # type: ignore[no-untyped-call]
    return out
