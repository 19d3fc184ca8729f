"""Which slices move from whom to whom when the layout changes (design: section 5).

Deterministic: every rank computes the same list from the two layouts and the set of ranks that hold state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from resihp_plan.layout import Holders, Interval, Layout, refine, slice_elements
from resihp_plan.model import ModelSpec


@dataclass(frozen=True, order=True)
class Move:
    """The slice [start, stop) of a tensor along its `dim` goes from `source` to `destination` (never the same)."""

    source: int
    destination: int
    tensor: str
    start: int
    stop: int


@dataclass(frozen=True, order=True)
class Kept:
    """A slice of the new layout that `rank` already holds in the old one."""

    rank: int
    tensor: str
    start: int
    stop: int


@dataclass(frozen=True)
class Transfers:
    """Moves and kept slices together cover the new layout exactly, apart from `missing`."""

    moves: tuple[Move, ...]
    """Sorted by (source, destination, tensor, start): the packing order of each (source, destination) packet."""
    kept: tuple[Kept, ...]
    missing: tuple[tuple[str, int, int], ...]
    """(tensor, start, stop) that nobody alive holds."""

    def outgoing(self, rank: int) -> tuple[Move, ...]:
        return tuple(m for m in self.moves if m.source == rank)

    def incoming(self, rank: int) -> tuple[Move, ...]:
        return tuple(m for m in self.moves if m.destination == rank)

    def num_elements(self, model: ModelSpec) -> int:
        """Elements that cross between ranks (parameters; times 3 with both AdamW moments)."""
        specs = {t.name: t for t in model.tensors}
        return sum(slice_elements(specs[m.tensor], Interval(m.start, m.stop)) for m in self.moves)


def transfers(
    old: Layout,
    new: Layout,
    *,
    alive: Collection[int],
    node_of: Mapping[int, str] | None = None,
    copies: Mapping[int, Collection[int]] | None = None,
) -> Transfers:
    """Slices that each rank of `new` keeps or receives.

    `alive`: ranks that hold their shards of `old` complete. `copies`: rank -> the ranks that hold a copy of its shards
    of `old`, instead of `alive`. `node_of`: rank -> node. The source of a slice is the destination itself if it holds
    it, else a holder on the same node, else any holder; among equals the one with the fewest elements to send so far,
    then the lowest rank.
    """
    kept_by = {rank: (rank,) for rank in alive} if copies is None else copies
    nodes: Mapping[int, str] = node_of or {}
    load: dict[int, int] = defaultdict(int)
    moves: list[Move] = []
    kept: list[Kept] = []
    missing: list[tuple[str, int, int]] = []
    known: dict[Holders, dict[Interval, Pieces]] = {}  # most layers are cut alike
    for spec in new.model.tensors:
        sources = tuple((holder, i) for rank, i in old.holders(spec.name) for holder in kept_by.get(rank, ()))
        cut = known.setdefault(sources, {})
        for destination, wanted in new.holders(spec.name):
            if wanted not in cut:
                cut[wanted] = _pieces(sources, wanted)
            for piece, holders in cut[wanted]:
                if not holders:
                    missing.append((spec.name, piece.start, piece.stop))
                elif destination in holders:
                    kept.append(Kept(destination, spec.name, piece.start, piece.stop))
                else:
                    source = _choose(holders, destination, nodes, load)
                    load[source] += slice_elements(spec, piece)
                    moves.append(Move(source, destination, spec.name, piece.start, piece.stop))
    return Transfers(_joined_moves(moves), _joined_kept(kept), _joined_missing(missing))


Pieces = tuple[tuple[Interval, tuple[int, ...]], ...]


def _pieces(sources: Holders, wanted: Interval) -> Pieces:
    """`wanted`, cut where its sources change, each piece with the ranks that hold it."""
    pieces = refine([wanted, *(i.overlap(wanted) for _, i in sources)])
    return tuple((p, tuple(dict.fromkeys(rank for rank, i in sources if i.covers(p)))) for p in pieces)


def _choose(holders: tuple[int, ...], destination: int, nodes: Mapping[int, str], load: Mapping[int, int]) -> int:
    home = nodes.get(destination)

    def preference(rank: int) -> tuple[bool, int, int]:
        return (home is None or nodes.get(rank) != home, load[rank], rank)

    return min(holders, key=preference)


def _joined_moves(moves: list[Move]) -> tuple[Move, ...]:
    """Adjacent slices of one packet become one."""
    out: list[Move] = []
    for m in sorted(moves):
        last = out[-1] if out else None
        if last and (last.source, last.destination, last.tensor, last.stop) == (
            m.source,
            m.destination,
            m.tensor,
            m.start,
        ):
            out[-1] = Move(last.source, last.destination, last.tensor, last.start, m.stop)
        else:
            out.append(m)
    return tuple(out)


def _joined_kept(kept: list[Kept]) -> tuple[Kept, ...]:
    out: list[Kept] = []
    for k in sorted(kept):
        last = out[-1] if out else None
        if last and (last.rank, last.tensor, last.stop) == (k.rank, k.tensor, k.start):
            out[-1] = Kept(last.rank, last.tensor, last.start, k.stop)
        else:
            out.append(k)
    return tuple(out)


def _joined_missing(missing: list[tuple[str, int, int]]) -> tuple[tuple[str, int, int], ...]:
    """Union of the missing slices of all destinations, per tensor."""
    out: list[tuple[str, int, int]] = []
    for name, start, stop in sorted(set(missing)):
        if out and out[-1][0] == name and start <= out[-1][2]:
            out[-1] = (name, out[-1][1], max(stop, out[-1][2]))
        else:
            out.append((name, start, stop))
    return tuple(out)
