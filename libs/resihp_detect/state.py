"""Arrays as plain values, for snapshots that MessagePack can carry (no pickle)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def pack(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Shape, kind and little-endian bytes."""
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return {"dtype": little.dtype.str, "shape": list(array.shape), "data": little.tobytes()}


def unpack(state: Mapping[str, Any], like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array again, writable. Raises ValueError unless it has the shape and kind of `like`."""
    dtype, shape = np.dtype(state["dtype"]), tuple(state["shape"])
    if shape != like.shape or dtype.kind != like.dtype.kind or dtype.itemsize != like.dtype.itemsize:
        raise ValueError(f"snapshot holds {dtype}{shape}, expected {like.dtype}{like.shape}")
    return np.frombuffer(state["data"], dtype=dtype).reshape(shape).astype(like.dtype)
