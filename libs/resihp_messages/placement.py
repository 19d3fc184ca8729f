"""Where the ranks of a job run, and which of their processes are meant.

A rank keeps its number when its worker is started again; its *start* tells the processes apart: 0 for the one that came
with the job, one more for each later one. News of the death of an older start says nothing about a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from resihp_messages.ids import Count, RankField, Token, Wire


class NodeRanks(Wire):
    """Ranks on one node; columnar, since a job may have many thousands of them."""

    node: Token
    ranks: tuple[RankField, ...]
    starts: tuple[Count, ...] = ()
    """Of each rank; empty: all are at their first start (0)."""


def starts_of(placement: Iterable[NodeRanks]) -> Mapping[int, int]:
    """Rank -> start. A rank that is not named is at its first start (0)."""
    return {rank: start for part in placement for rank, start in paired_starts(part.ranks, part.starts).items()}


def node_of(placement: Iterable[NodeRanks]) -> Mapping[int, str]:
    """Rank -> node."""
    return {rank: part.node for part in placement for rank in part.ranks}


def paired_starts(ranks: Sequence[int], starts: Sequence[int]) -> Mapping[int, int]:
    """Rank -> start, of two columns of a message. Raises ValueError if they differ in length."""
    return dict(zip(ranks, starts or [0] * len(ranks), strict=True))
