"""Initial values: a function of (seed, tensor name) only, so that they do not depend on the layout."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from resihp_plan import ModelSpec, Split, TensorSpec


def initial_tensor(spec: TensorSpec, model: ModelSpec, seed: int, dtype: torch.dtype) -> Tensor:
    """The whole tensor: ones for norms, zeros for biases, else normal with `init_std`, narrower by sqrt(2 * layers)
    where a layer writes to the residual stream (Radford et al. 2019, section 2.3). Drawn in float64, rounded once."""
    if spec.split is Split.REPLICATED:
        return torch.ones(spec.shape, dtype=dtype)
    if len(spec.shape) == 1:
        return torch.zeros(spec.shape, dtype=dtype)
    name = hashlib.blake2b(f"{seed}/{spec.name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(name, "big") >> 1)
    std = model.init_std
    if spec.name.endswith(("wo.weight", "w_down.weight")):
        std /= math.sqrt(2 * model.num_layers)
    return (torch.randn(spec.shape, generator=generator, dtype=torch.float64) * std).to(dtype)
