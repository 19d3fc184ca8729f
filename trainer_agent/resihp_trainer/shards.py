"""A rank's part of the training state in one layout: parameters and both AdamW moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from resihp_plan import Interval, Layout
from resihp_trainer.model import Pretrained, initial_tensor

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
    def empty(
        cls,
        layout: Layout,
        rank: int,
        dtype: torch.dtype,
        given: Mapping[str, Shard] = MappingProxyType({}),
        accelerator: torch.device | None = None,
    ) -> ShardSet:
        """Those that are `given`, and others of the right shapes with undefined contents, to be filled by a move; on
        `accelerator`, else in host memory."""
        shards = {}
        for name in layout.shards(rank):
            if name in given:
                shards[name] = given[name]
                continue
            shape = layout.shape(rank, name)
            shards[name] = Shard(*(torch.empty(shape, dtype=dtype, device=accelerator) for _ in range(STATE_TENSORS)))
        return cls(layout, rank, MappingProxyType(shards))

    @classmethod
    def initial(
        cls,
        layout: Layout,
        rank: int,
        *,
        seed: int,
        dtype: torch.dtype,
        tick: Callable[[], None],
        accelerator: torch.device | None = None,
    ) -> ShardSet:
        """State before the first iteration: the same whole tensors on every layout, sliced; moments zero. Parameters
        are those of the model's folder (raises ValueError if it does not fit), or drawn from the seed."""
        fresh = cls.empty(layout, rank, dtype, accelerator=accelerator)
        pretrained = Pretrained(Path(layout.model.hf)) if layout.model.hf is not None else None
        for name, shard in fresh.shards.items():
            tick()
            spec, interval = layout.tensors[name], layout.shards(rank)[name]
            if pretrained is not None:
                shard.parameter.copy_(pretrained.read(spec, interval))
            else:
                shard.parameter.copy_(narrow(layout, name, initial_tensor(spec, layout.model, seed, dtype), interval))
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

    def slices(self, name: str, start: int, stop: int) -> tuple[Tensor, ...]:
        """Views of the slice [start, stop) of the whole: parameter, exp_avg and exp_avg_sq."""
        return tuple(self.piece(name, tensor, start, stop) for tensor in self.shards[name].state)

    def piece(self, name: str, tensor: Tensor, start: int, stop: int) -> Tensor:
        """View of the slice [start, stop), in elements of the whole, of `tensor`, which is shaped like the shard."""
        return narrow(self.layout, name, tensor, Interval(start, stop), self.layout.shards(self.rank)[name].start)


def narrow(layout: Layout, name: str, tensor: Tensor, interval: Interval, origin: int = 0) -> Tensor:
    """View of `interval` along the tensor's split dimension; `tensor` begins at element `origin` of the whole."""
    return tensor.narrow(layout.tensors[name].dim, interval.start - origin, len(interval))
