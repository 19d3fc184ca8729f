"""Megatron-core names its devices "cuda" in the source; with this it trains on the CPU, over gloo. For tests only.

`install()` before the first import of `megatron`: requests for the CUDA device are answered with the CPU, and the
random state that tensor-parallel regions keep is the CPU's. Only what a local layer spec without fusions needs.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def _on_cpu(value: Any) -> Any:
    is_cuda = value == "cuda" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "cuda"
    return CPU if is_cuda else value


class _CpuForCuda(TorchFunctionMode):
    """Tensors asked for on "cuda" come on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(_on_cpu, args), **{name: _on_cpu(value) for name, value in (kwargs or {}).items()})


def install() -> None:
    """For the life of this process. Idempotent it is not."""
    everything: Any = torch
    everything.compile = lambda function, **_: function  # its fusers: minutes of compiling
    _CpuForCuda().__enter__()  # type: ignore[no-untyped-call]
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    for name in ("synchronize", "empty_cache", "manual_seed"):
        setattr(cuda, name, lambda *_: None)  # one each: torch's compiler refuses two names for one function
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    setattr(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor)  # noqa: B010
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda *_, **__: None  # what is forked draws nothing: no dropout, weights made on CPU
