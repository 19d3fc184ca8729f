"""Packed documents as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class MicroBatch:
    """Documents laid end to end: `inputs`, `targets`, `positions` are int64[T]; positions restart per document."""

    lengths: tuple[int, ...]
    inputs: Tensor
    targets: Tensor
    positions: Tensor
    ids: tuple[int, ...] = ()
    """Of the documents, unique in the job; only dropout needs them."""

    @classmethod
    def of(cls, texts: Sequence[NDArray[np.integer]], ids: Sequence[int] = ()) -> MicroBatch:
        """Pack texts of l + 1 tokens each into l inputs and l targets each."""
        none = np.zeros(0, dtype=np.int64)

        def joined(parts: list[NDArray[np.integer]]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts).astype(np.int64) if parts else none)

        lengths = tuple(len(t) - 1 for t in texts)
        positions = np.concatenate([np.arange(n) for n in lengths]) if lengths else none
        inputs, targets = joined([t[:-1] for t in texts]), joined([t[1:] for t in texts])
        return cls(lengths, inputs, targets, torch.from_numpy(positions), tuple(ids))

    def to(self, accelerator: torch.device) -> MicroBatch:
        """The same on another device."""
        inputs, targets, positions = (t.to(accelerator) for t in (self.inputs, self.targets, self.positions))
        return MicroBatch(self.lengths, inputs, targets, positions, self.ids)

    @cached_property
    def num_tokens(self) -> int:
        return sum(self.lengths)

    @cached_property
    def sum_sq_len(self) -> int:
        """Sum of squared document lengths: the attention work."""
        return sum(n * n for n in self.lengths)
