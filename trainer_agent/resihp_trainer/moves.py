"""State moves between layouts: one all-to-all of packed bytes, each packet with a digest of its contents.

A packet from a to b holds, for each of `Transfers.moves` between them in order, the slice of the parameter, of exp_avg
and of exp_avg_sq. Errors: what `Pending.wait` raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from resihp_plan import Interval, Layout, Move, Transfers
from resihp_plan.layout import slice_elements
from resihp_trainer.comm.port import Group
from resihp_trainer.shards import STATE_TENSORS, ShardSet

DIGEST_BYTES = 16


class Source(Protocol):
    """What a rank holds of the state that moves (`ShardSet`, `copies.Collection`)."""

    def slices(self, name: str, start: int, stop: int) -> tuple[Tensor, ...]:
        """Parameter, exp_avg and exp_avg_sq of the slice [start, stop) of the whole tensor."""
        ...


@dataclass(frozen=True)
class Moved:
    """The shards of the new layout, complete if `is_verified`."""

    held: ShardSet
    bytes_received: int
    is_verified: bool
    """Every packet that arrived has the digest that its sender computed."""


def move_state(
    old: Source | None,
    target: Layout,
    moves: Transfers,
    world: Group,
    rank: int,
    dtype: torch.dtype,
    tick: Callable[[], None],
) -> Moved:
    """Build this rank's shards of `target`: what it keeps is copied from `old`, the rest comes from other ranks.

    `old`: what it holds of the base layout, untouched; None for a newcomer.
    """
    new = ShardSet.empty(target, rank, dtype)
    for kept in moves.kept:
        if kept.rank == rank and old is not None:
            where = kept.tensor, kept.start, kept.stop
            for source, destination in zip(old.slices(*where), new.slices(*where), strict=True):
                destination.copy_(source)
    outgoing = {peer: [m for m in moves.outgoing(rank) if m.destination == peer] for peer in world.ranks}
    incoming = {peer: [m for m in moves.incoming(rank) if m.source == peer] for peer in world.ranks}
    packets = [_pack(old, outgoing[peer], tick) for peer in world.ranks]
    sizes = [_packet_bytes(target, incoming[peer], dtype) for peer in world.ranks]
    output = torch.empty(sum(sizes), dtype=torch.uint8)
    world.all_to_all(output, torch.cat(packets), sizes, [len(p) for p in packets]).wait()
    arrived = zip(world.ranks, torch.split(output, sizes), strict=True)
    verified = [_unpack(new, incoming[peer], packet, tick) for peer, packet in arrived]
    return Moved(new, sum(sizes), all(verified))


def digest_of(raw: Tensor) -> Tensor:
    """BLAKE2b digest of a uint8 tensor's bytes, as a uint8 tensor."""
    digest = hashlib.blake2b(raw.numpy().data, digest_size=DIGEST_BYTES).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)


def _pack(old: Source | None, moves: Iterable[Move], tick: Callable[[], None]) -> Tensor:
    parts: list[Tensor] = []
    for m in moves:
        tick()
        assert old is not None  # sources are holders of the base layout
        for view in old.slices(m.tensor, m.start, m.stop):
            parts.append(view.contiguous().view(-1).view(torch.uint8))
    if not parts:
        return torch.empty(0, dtype=torch.uint8)
    payload = torch.cat(parts)
    return torch.cat((digest_of(payload), payload))


def _packet_bytes(target: Layout, moves: Iterable[Move], dtype: torch.dtype) -> int:
    elements = sum(slice_elements(target.tensors[m.tensor], Interval(m.start, m.stop)) for m in moves)
    return DIGEST_BYTES + elements * STATE_TENSORS * dtype.itemsize if elements else 0


def _unpack(new: ShardSet, moves: Iterable[Move], packet: Tensor, tick: Callable[[], None]) -> bool:
    if not len(packet):
        return True
    payload = packet[DIGEST_BYTES:]
    if not torch.equal(digest_of(payload), packet[:DIGEST_BYTES]):
        return False
    offset = 0
    for m in moves:
        tick()
        for view in new.slices(m.tensor, m.start, m.stop):
            size = view.numel() * view.element_size()
            # A clone is aligned for any dtype; the packet's slices are not.
            view.copy_(payload[offset : offset + size].clone().view(view.dtype).view(view.shape))
            offset += size
    return True
