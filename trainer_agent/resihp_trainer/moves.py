"""State moves between layouts: one all-to-all of packed bytes, each packet with a digest of its contents.

A packet from a to b holds, for each of `Transfers.moves` between them in order, the slice of the parameter, of exp_avg
and of exp_avg_sq. Errors: what `Pending.wait` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from resihp_plan import Interval, Layout, Move, Transfers
from resihp_plan.layout import slice_elements
from resihp_trainer.comm.port import Group
from resihp_trainer.digests import DIGEST_BYTES, digest_of
from resihp_trainer.shards import STATE_TENSORS, ShardSet


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
    accelerator: torch.device | None = None,
) -> Moved:
    """Build this rank's shards of `target`: what it keeps is copied from `old`, the rest comes from other ranks.
    Packets are in host memory, whatever device the shards are on.

    `old`: what it holds of the base layout, untouched; None for a newcomer.
    """
    new = _begin(old, target, moves, rank, dtype, accelerator)
    outgoing, incoming = _by_peer(world, moves.outgoing(rank)), _by_peer(world, moves.incoming(rank), sources=True)
    sent = [_packet_bytes(target, outgoing[peer], dtype) for peer in world.ranks]
    received = [_packet_bytes(target, incoming[peer], dtype) for peer in world.ranks]
    output, input_ = (torch.empty(sum(sizes), dtype=torch.uint8) for sizes in (received, sent))
    for peer, packet in zip(world.ranks, torch.split(input_, sent), strict=True):
        _pack(old, outgoing[peer], packet, dtype, tick)
    world.all_to_all(output, input_, received, sent).wait()
    arrived = zip(world.ranks, torch.split(output, received), strict=True)
    verified = [_unpack(new, incoming[peer], packet, dtype, tick) for peer, packet in arrived]
    return Moved(new, sum(received), all(verified))


def _begin(
    old: Source | None,
    target: Layout,
    moves: Transfers,
    rank: int,
    dtype: torch.dtype,
    accelerator: torch.device | None,
) -> ShardSet:
    """Shards of `target` with what this rank keeps. A live shard that stays as it is, is not copied but shared with the
    old layout: no commit changes the shards of two layouts, and one of the two is dropped with the next."""
    held = old if isinstance(old, ShardSet) else None
    wanted = target.shards(rank)
    same = {n: s for n, s in held.shards.items() if held.layout.shards(rank)[n] == wanted.get(n)} if held else {}
    new = ShardSet.empty(target, rank, dtype, same, accelerator)
    for kept in moves.kept:
        if kept.rank == rank and old is not None and kept.tensor not in same:
            where = kept.tensor, kept.start, kept.stop
            for source, destination in zip(old.slices(*where), new.slices(*where), strict=True):
                destination.copy_(source)
    return new


def _by_peer(world: Group, moves: Iterable[Move], *, sources: bool = False) -> dict[int, list[Move]]:
    """In their order; of all destinations, or of all sources."""
    found: dict[int, list[Move]] = {peer: [] for peer in world.ranks}
    for m in moves:
        found[m.source if sources else m.destination].append(m)
    return found


def _packet_bytes(target: Layout, moves: Iterable[Move], dtype: torch.dtype) -> int:
    """So that every packet, and every slice in it, is aligned for `dtype`."""
    elements = sum(slice_elements(target.tensors[m.tensor], Interval(m.start, m.stop)) for m in moves)
    return DIGEST_BYTES + elements * STATE_TENSORS * dtype.itemsize if elements else 0


def _pack(
    old: Source | None, moves: Iterable[Move], packet: Tensor, dtype: torch.dtype, tick: Callable[[], None]
) -> None:
    if not len(packet):
        return
    assert old is not None  # sources are holders of the base layout
    offset, elements = 0, packet[DIGEST_BYTES:].view(dtype)
    for m in moves:
        tick()
        for view in old.slices(m.tensor, m.start, m.stop):
            elements[offset : offset + view.numel()].view(view.shape).copy_(view)
            offset += view.numel()
    packet[:DIGEST_BYTES] = digest_of(packet[DIGEST_BYTES:])


def _unpack(new: ShardSet, moves: Iterable[Move], packet: Tensor, dtype: torch.dtype, tick: Callable[[], None]) -> bool:
    if not len(packet):
        return True
    if not torch.equal(digest_of(packet[DIGEST_BYTES:]), packet[:DIGEST_BYTES]):
        return False
    offset, elements = 0, packet[DIGEST_BYTES:].view(dtype)
    for m in moves:
        tick()
        for view in new.slices(m.tensor, m.start, m.stop):
            view.copy_(elements[offset : offset + view.numel()].view(view.shape))
            offset += view.numel()
    return True
