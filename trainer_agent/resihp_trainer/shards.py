"""A rank's part of the training state in one layout: parameters and both AdamW moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from resihp_plan import Interval, Layout
from resihp_trainer.model import initial_tensor

STATE_TENSORS = 3
"""Tensors of equal shape per parameter: itself, exp_avg, exp_avg_sq."""


@dataclass(frozen=True)
class Shard:
    """A slice of one tensor and its AdamW moments (Kingma & Ba 2015: m and v); all contiguous and of one shape."""

    parameter: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """Everything that moves when the layout changes, in packing order."""
        return self.parameter, self.exp_avg, self.exp_avg_sq


@dataclass(frozen=True)
class ShardSet:
    """What `rank` holds in `layout`; empty for a standby rank, which thereby still holds the layout complete."""

    layout: Layout
    rank: int
    shards: Mapping[str, Shard]

    @classmethod
    def empty(cls, layout: Layout, rank: int, dtype: torch.dtype) -> ShardSet:
        """Shards of the right shapes with undefined contents, to be filled by a move."""
        shards = {}
        for name in layout.shards(rank):
            shape = layout.shape(rank, name)
            shards[name] = Shard(*(torch.empty(shape, dtype=dtype) for _ in range(STATE_TENSORS)))
        return cls(layout, rank, MappingProxyType(shards))

    @classmethod
    def initial(cls, layout: Layout, rank: int, *, seed: int, dtype: torch.dtype, tick: Callable[[], None]) -> ShardSet:
        """State before the first iteration: the same whole tensors on every layout, sliced; moments zero."""
        fresh = cls.empty(layout, rank, dtype)
        for name, shard in fresh.shards.items():
            tick()
            whole = initial_tensor(layout.tensors[name], layout.model, seed, dtype)
            shard.parameter.copy_(narrow(layout, name, whole, layout.shards(rank)[name]))
            shard.exp_avg.zero_()
            shard.exp_avg_sq.zero_()
        return fresh

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        return {name: shard.parameter for name, shard in self.shards.items()}

    @property
    def vocab_start(self) -> int:
        """First vocabulary entry of this rank's part of embedding and head; 0 if it holds neither."""
        held = self.layout.shards(self.rank)
        return next((held[n].start for n in ("embed.weight", "head.weight") if n in held), 0)

    def piece(self, name: str, tensor: Tensor, start: int, stop: int) -> Tensor:
        """View of the slice [start, stop), in elements of the whole, of `tensor`, which is shaped like the shard."""
        return narrow(self.layout, name, tensor, Interval(start, stop), self.layout.shards(self.rank)[name].start)


def narrow(layout: Layout, name: str, tensor: Tensor, interval: Interval, origin: int = 0) -> Tensor:
    """View of `interval` along the tensor's split dimension; `tensor` begins at element `origin` of the whole."""
    return tensor.narrow(layout.tensors[name].dim, interval.start - origin, len(interval))
