"""Dropout (Srivastava et al. 2014) whose mask is a pure function of (seed, document, position, layer).

A counter instead of a generator's state: whichever rank computes a token, in whichever micro-batch, order or replica,
and however often (redone iterations, recomputed layers), it drops the same elements. A document's id is unique in the
job and contains the iteration, so every iteration has new masks.
Shapes: T tokens, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from resihp_trainer.model.micro_batch import MicroBatch

_GOLDEN = 0x9E3779B97F4A7C15
_COINS = 4
"""Elements per hash, 16 bits each; the rate is exact to 2^-16."""
EMBEDDING_SITE = 0


def layer_sites(layer: int) -> tuple[int, int]:
    """Where attention and MLP of a layer drop: numbers that no other place of the model has."""
    return 2 * layer + 1, 2 * layer + 2


@dataclass(frozen=True)
class Dropout:
    """Zeroes elements with probability `rate` and scales the others up, so that the expectation stays."""

    rate: float
    seed: int

    def apply(self, x_TD: Tensor, batch: MicroBatch, site: int) -> Tensor:
        """`x_TD` with this site's mask for the tokens of `batch`. Raises ValueError if documents have no ids."""
        if not self.rate:
            return x_TD
        kept = self.kept(batch, site, x_TD.shape[1])
        return torch.where(kept, x_TD * (1.0 / (1.0 - self.rate)), 0.0)

    def kept(self, batch: MicroBatch, site: int, width: int) -> Tensor:
        """bool[T, width]: what is not dropped."""
        if len(batch.ids) != len(batch.lengths):
            raise ValueError(f"dropout needs the ids of {len(batch.lengths)} documents, got {len(batch.ids)}")
        device = batch.positions.device
        ids_T = torch.repeat_interleave(torch.tensor(batch.ids), torch.tensor(batch.lengths)).to(device)
        key_T = ids_T + _signed(self.seed * _GOLDEN)
        key_T = _mixed(key_T) + batch.positions * _signed(_GOLDEN)
        key_T = _mixed(key_T) + _signed(site * _GOLDEN)
        columns = torch.arange(1, -(-width // _COINS) + 1, device=device) * _signed(_GOLDEN)
        coins = _mixed(_mixed(key_T)[:, None] + columns).view(torch.int16)  # four of them, each uniform over int16
        return coins[:, :width] >= int(self.rate * 2**16) - 2**15


def _mixed(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014): a bijection that scatters neighbours. int64 wraps."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; that of signed integers would draw in the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 of the same low 64 bits."""
    low = value & (2**64 - 1)
    return low - 2**64 if low >> 63 else low
