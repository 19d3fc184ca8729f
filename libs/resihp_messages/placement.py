"""Where the ranks of a job run, and which of their processes are meant.

A rank keeps its number when its worker is started again; its *start* tells the processes apart: 0 for the one that came
with the job, one more for each later one. News of the death of an older start says nothing about a newer one.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated

from pydantic import Field, model_validator

from resihp_messages.ids import Count, RankField, Token, Wire

MAX_BYTES = 16 << 20
"""Of a placement once it is decompressed."""


class NodeRanks(Wire):
    """Ranks on one node; columnar, since a job may have many thousands of them."""

    node: Token
    ranks: tuple[RankField, ...]
    starts: tuple[Count, ...] = ()
    """Of each rank; empty: all are at their first start (0)."""


class PackedPlacement(Wire):
    """Many `NodeRanks` in few bytes: every node gets all of them, so for thousands of nodes they would be too long."""

    packed: Annotated[str, Field(max_length=1 << 20)]
    """Base64 of zlib of JSON: nodes, numbers of ranks, differences between ranks, starts (or none)."""

    @classmethod
    def of(cls, parts: Sequence[NodeRanks]) -> PackedPlacement:
        """Starts are kept if any part has them."""
        ranks = [rank for part in parts for rank in part.ranks]
        starts = [s for part in parts for s in paired_starts(part.ranks, part.starts).values()]
        columns = {
            "nodes": [part.node for part in parts],
            "sizes": [len(part.ranks) for part in parts],
            "ranks": [b - a for a, b in itertools.pairwise((0, *ranks))],
            "starts": starts if any(starts) else [],
        }
        raw = json.dumps(columns, separators=(",", ":")).encode()
        return cls(packed=base64.b64encode(zlib.compress(raw)).decode())

    @model_validator(mode="after")
    def _is_whole(self) -> PackedPlacement:
        _ = self.parts
        return self

    @cached_property
    def parts(self) -> tuple[NodeRanks, ...]:
        """What was packed."""
        try:
            stream = zlib.decompressobj()
            columns = json.loads(stream.decompress(base64.b64decode(self.packed, validate=True), MAX_BYTES))
            ranks = list(itertools.accumulate(columns["ranks"]))
            stops = list(itertools.accumulate(columns["sizes"]))
            if not stream.eof or sum(columns["sizes"]) != len(ranks):
                raise ValueError("incomplete, or columns of different lengths")
            return tuple(
                NodeRanks(node=node, ranks=tuple(ranks[a:b]), starts=tuple(columns["starts"][a:b]))
                for node, (a, b) in zip(columns["nodes"], itertools.pairwise((0, *stops)), strict=True)
            )
        except (ValueError, TypeError, KeyError, zlib.error) as error:
            raise ValueError(f"not a placement: {error}") from error


Placement = tuple[NodeRanks, ...] | PackedPlacement


def starts_of(placement: Iterable[NodeRanks] | PackedPlacement) -> Mapping[int, int]:
    """Rank -> start. A rank that is not named is at its first start (0)."""
    return {rank: start for part in _parts(placement) for rank, start in paired_starts(part.ranks, part.starts).items()}


def node_of(placement: Iterable[NodeRanks] | PackedPlacement) -> Mapping[int, str]:
    """Rank -> node."""
    return {rank: part.node for part in _parts(placement) for rank in part.ranks}


def _parts(placement: Iterable[NodeRanks] | PackedPlacement) -> Iterable[NodeRanks]:
    return placement.parts if isinstance(placement, PackedPlacement) else placement


def paired_starts(ranks: Sequence[int], starts: Sequence[int]) -> Mapping[int, int]:
    """Rank -> start, of two columns of a message. Raises ValueError if they differ in length."""
    return dict(zip(ranks, starts or [0] * len(ranks), strict=True))
