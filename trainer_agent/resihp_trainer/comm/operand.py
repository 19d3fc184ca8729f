"""Checks of the caller's tensors, common to all groups."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def require_contiguous(*tensors: Tensor) -> None:
    """ValueError unless every tensor is contiguous."""
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"tensor of shape {tuple(tensor.shape)} is not contiguous")


def require_gatherable(outputs: Sequence[Tensor], tensor: Tensor, size: int) -> None:
    """ValueError unless there is one output per rank, each of the tensor's shape and dtype."""
    require_contiguous(tensor, *outputs)
    if len(outputs) != size:
        raise ValueError(f"{len(outputs)} outputs for a group of {size}")
    for output in outputs:
        if output.shape != tensor.shape or output.dtype != tensor.dtype:
            raise ValueError(
                f"output {tuple(output.shape)} {output.dtype} differs from {tuple(tensor.shape)} {tensor.dtype}"
            )


def require_splits(tensor: Tensor, splits: Sequence[int], size: int) -> None:
    """ValueError unless `tensor` is one-dimensional and `splits` cuts all of it into one part per rank."""
    require_contiguous(tensor)
    if tensor.dim() != 1 or len(splits) != size or min(splits) < 0 or sum(splits) != tensor.shape[0]:
        raise ValueError(f"splits {list(splits)} do not cut a tensor of shape {tuple(tensor.shape)} into {size} parts")
