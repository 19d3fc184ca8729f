"""Pipeline edges between tensor-parallel groups of any two degrees (design: section 6.10).

Equal degrees: member i sends the whole tensor to member i. Unequal degrees: the token axis is cut into
N = max(senders, receivers) chunks, each crosses exactly once, and the receivers all-gather inside their group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from resihp_plan.plan import ParallelPlan


class Place(NamedTuple):
    """A stage of a replica: where operations run."""

    replica: int
    stage: int


@dataclass(frozen=True)
class Chunk:
    """The part [start/count, stop/count) of the token axis that goes from one TP index to another."""

    start: int
    stop: int
    count: int
    sender: int
    """TP index in the sending group."""
    receiver: int
    """TP index in the receiving group."""

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.stop == self.count


@dataclass(frozen=True)
class Route:
    """A chunk with the plan ranks at its two ends."""

    chunk: Chunk
    source: int
    destination: int


def edge_chunks(num_senders: int, num_receivers: int) -> tuple[Chunk, ...]:
    """Which sender index sends which fraction of the token axis to which receiver index, in token order.

    Every member of both groups takes part; a (sender, receiver) pair carries at most one chunk; the chunks of one
    receiver are adjacent. Raises ValueError for an empty group.

    >>> [(c.sender, c.receiver) for c in edge_chunks(2, 3)]
    [(0, 0), (0, 1), (1, 2)]
    """
    if num_senders < 1 or num_receivers < 1:
        raise ValueError(f"an edge needs members on both sides, got {num_senders} senders, {num_receivers} receivers")
    if num_senders == num_receivers:
        return tuple(Chunk(0, 1, 1, i, i) for i in range(num_senders))
    n = max(num_senders, num_receivers)
    return tuple(Chunk(c, c + 1, n, c * num_senders // n, c * num_receivers // n) for c in range(n))


def needs_gather(num_senders: int, num_receivers: int) -> bool:
    """Whether the receivers must all-gather: unequal degrees and more than one receiver."""
    return num_senders != num_receivers and num_receivers > 1


def chunk_tokens(chunk: Chunk, num_tokens: int) -> tuple[int, int]:
    """Token range (start, stop) of a chunk; boundaries as in `numpy.array_split`: the first parts are the longer ones.

    Chunks of an edge partition the tokens; a chunk is empty if there are fewer tokens than chunks.
    """
    base, extra = divmod(num_tokens, chunk.count)
    return chunk.start * base + min(chunk.start, extra), chunk.stop * base + min(chunk.stop, extra)


def receiver_tokens(chunks: tuple[Chunk, ...], receiver: int, num_tokens: int) -> tuple[int, int]:
    """Token range that member `receiver` gets before the all-gather (the union of its adjacent chunks)."""
    ranges = [chunk_tokens(c, num_tokens) for c in chunks if c.receiver == receiver]
    if not ranges:
        raise ValueError(f"no chunk goes to receiver index {receiver}")
    return ranges[0][0], ranges[-1][1]


def routes(plan: ParallelPlan, sender: Place, receiver: Place) -> tuple[Route, ...]:
    """The chunks of the edge `sender` -> `receiver` with plan ranks, in token order."""
    a = plan.replicas[sender.replica].stages[sender.stage].ranks
    b = plan.replicas[receiver.replica].stages[receiver.stage].ranks
    return tuple(Route(c, a[c.sender], b[c.receiver]) for c in edge_chunks(len(a), len(b)))
