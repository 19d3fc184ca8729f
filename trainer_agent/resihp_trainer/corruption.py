"""Testing: silent corruption of this rank's state, as a faulty device would cause it."""

from __future__ import annotations

import torch

from resihp_trainer.shards import ShardSet

_BIT = {torch.float32: (torch.int32, 1 << 18), torch.float64: (torch.int64, 1 << 47)}
"""A middle bit of the mantissa: the value changes by a few percent, so training goes on as if nothing had happened."""


def flip_bit(held: ShardSet) -> str | None:
    """Flip one bit of the first element of the largest parameter; returns its name, None on a rank without state."""
    if not held.shards:
        return None
    name = max(sorted(held.shards), key=lambda n: held.shards[n].parameter.numel())
    parameter = held.shards[name].parameter
    integer, bit = _BIT[parameter.dtype]
    with torch.no_grad():
        parameter.view(integer).view(-1)[0] ^= bit
    return name
