"""Rotary position embedding (Su et al. 2021), with the two ways in which published models stretch it.

Shapes: T tokens, K head dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from resihp_plan import ModelSpec

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, `[T, 1, K/2]`."""


def rotary_frequencies(model: ModelSpec) -> Tensor:
    """Angle per position of every pair, float64[K/2].

    `linear` divides all by the factor (Chen et al. 2023). `llama3` divides those with wavelengths beyond the original
    context / low, leaves those below the original context / high, and goes linearly from one to the other in between.
    """
    exponents = torch.arange(0, model.head_dim, 2, dtype=torch.float64) / model.head_dim
    plain = model.rope_theta**-exponents
    if model.rope_scaling == "none":
        return plain
    stretched = plain / model.rope_factor
    if model.rope_scaling == "linear":
        return stretched
    turns = model.rope_original_context * plain / (2 * math.pi)  # in the original context
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * stretched + kept * plain


def rotary_tables(positions_T: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Rotary:
    """Computed in float64 and rounded once."""
    angles = positions_T.to(torch.float64)[:, None] * frequencies.to(positions_T.device)[None, :]
    return angles.cos().to(dtype)[:, None, :], angles.sin().to(dtype)[:, None, :]


def rotate(x_THK: Tensor, rotary: Rotary) -> Tensor:
    """Rotate the pairs (k, k + K/2) of every head by its token's position; in the tables' precision."""
    cos, sin = rotary
    a, b = x_THK.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x_THK.dtype)
