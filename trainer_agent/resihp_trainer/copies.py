"""A copy of a rank's shards in one buffer, with a digest of its contents: what snapshots keep, send and write to disk.

The buffer is uint8: the digest, then for each tensor in layout order parameter, exp_avg and exp_avg_sq. Shards over it
are views, so a copy costs its bytes once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from resihp_plan import Interval, Layout
from resihp_plan.layout import refine
from resihp_trainer.digests import DIGEST_BYTES, digest_of
from resihp_trainer.shards import STATE_TENSORS, Shard, ShardSet


def copy_bytes(layout: Layout, rank: int, dtype: torch.dtype) -> int:
    """Size of the buffer for a copy of `rank`'s shards."""
    elements = sum(prod(layout.shape(rank, name)) for name in layout.shards(rank))
    return DIGEST_BYTES + elements * STATE_TENSORS * dtype.itemsize


def parts_of(held: ShardSet) -> list[Tensor]:
    """Flat views of all tensors of a copy, in its order."""
    return [tensor.view(-1) for shard in held.shards.values() for tensor in shard.state]


def fill(buffer: Tensor, parts: Sequence[Tensor]) -> None:
    """Copy `parts_of` the shards, and their digest, into a buffer of `copy_bytes`. Any thread, while nobody changes the
    shards.

    Two calls that leave the interpreter to other threads; one per tensor would fight for it with training.
    """
    if parts:
        room = buffer[DIGEST_BYTES:].view(parts[0].dtype)
        if parts[0].is_cpu:
            torch.cat(list(parts), out=room)
        else:
            for part, place in zip(parts, torch.split(room, [part.numel() for part in parts]), strict=True):
                place.copy_(part)
    buffer[:DIGEST_BYTES] = digest_of(buffer[DIGEST_BYTES:])


def is_intact(buffer: Tensor) -> bool:
    """Whether the contents have the digest that `fill` computed."""
    return torch.equal(digest_of(buffer[DIGEST_BYTES:]), buffer[:DIGEST_BYTES])


def shards_in(buffer: Tensor, layout: Layout, rank: int, dtype: torch.dtype) -> ShardSet:
    """Views of a filled buffer as the shards of `rank`."""
    offset, shards = DIGEST_BYTES, {}
    for name in layout.shards(rank):
        shape = layout.shape(rank, name)
        size = prod(shape) * dtype.itemsize
        parts = []
        for _ in range(STATE_TENSORS):
            parts.append(buffer[offset : offset + size].view(dtype).view(shape))
            offset += size
        shards[name] = Shard(*parts)
    return ShardSet(layout, rank, MappingProxyType(shards))


@dataclass(frozen=True)
class Collection:
    """Shards of several ranks of one layout and one iteration, as one source of slices."""

    sets: tuple[ShardSet, ...]

    def slices(self, name: str, start: int, stop: int) -> tuple[Tensor, ...]:
        """Parameter, exp_avg and exp_avg_sq of the slice [start, stop) of the whole; put together if no set has all of
        it. The sets must cover it."""
        wanted = Interval(start, stop)
        held = [(s, i) for s in self.sets if (i := s.layout.shards(s.rank).get(name)) is not None]
        for s, interval in held:
            if interval.covers(wanted):
                return s.slices(name, start, stop)
        cuts = refine([i.overlap(wanted) for _, i in held])
        parts = [next(s.slices(name, c.start, c.stop) for s, i in held if i.covers(c)) for c in cuts]
        assert parts, f"{name}[{start}:{stop}] is not in {sorted(s.rank for s in self.sets)}"
        dim = self.sets[0].layout.tensors[name].dim
        return tuple(torch.cat([part.cpu() for part in same], dim) for same in zip(*parts, strict=True))


def collect(sets: Iterable[ShardSet]) -> Collection | None:
    """None if there are no sets."""
    found = tuple(sets)
    return Collection(found) if found else None
