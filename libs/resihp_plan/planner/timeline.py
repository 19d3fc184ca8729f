"""Many simulations of one program at once: the dependencies are worked out once, the times by numpy for a whole batch.

The schedule is that of `program` (`orders`), the semantics are those of `simulate` (paper, Eq. 2); a test keeps the two
equal. It covers replicas that do not exchange work, whose micro-batches are all alike: what the planner compares.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from resihp_plan.operation import OpKind
from resihp_plan.orders import Computation, order
from resihp_plan.plan import Schedule

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Level:
    """Operations that depend only on earlier levels; each has a predecessor on its own stage and one elsewhere."""

    start: int
    stop: int
    """Operations are numbered level by level."""
    own: Ints
    """The operation before it on its stage; the start of everything (time 0) for the first."""
    other: Ints
    """The operation of the neighbouring stage for whose result it waits, or the start of everything."""
    edge: Ints
    """Column of that transfer; the last column is 0 seconds."""
    seconds: Ints
    """Column of each operation's duration."""


@dataclass(frozen=True)
class Timeline:
    """A replica of `num_stages` stages and `num_micro_batches` micro-batches under one schedule."""

    num_stages: int
    kinds: tuple[OpKind, ...]
    """Kinds of computation that the schedule has, in the order of `makespan_s`'s first axis."""
    num_nodes: int
    levels: tuple[_Level, ...]

    def makespan_s(self, compute_s: Floats, transfer_s: Floats) -> Floats:
        """[batch]: seconds until the last backward is over.

        `compute_s`: [kind, batch, stage]; `transfer_s`: [direction, batch, stage - 1]: activations,
        then gradients.
        """
        batch = compute_s.shape[1]
        seconds = compute_s.transpose(0, 2, 1).reshape(-1, batch)
        edges = np.vstack([transfer_s[0].T, transfer_s[1].T, np.zeros((1, batch))])
        stop = np.zeros((self.num_nodes + 1, batch))  # the last row is the start of everything
        for level in self.levels:
            arrived = stop[level.other] + edges[level.edge]
            np.maximum(arrived, stop[level.own], out=arrived)
            np.add(arrived, seconds[level.seconds], out=stop[level.start : level.stop])
        found: Floats = stop.max(axis=0)
        return found


@lru_cache(maxsize=512)
def timeline(schedule: Schedule, num_stages: int, num_micro_batches: int) -> Timeline:
    """The timeline of a replica. Raises ValueError for a schedule whose program waits for ever.

    >>> t = timeline(Schedule.ONE_F_ONE_B, 3, 4)
    >>> float(t.makespan_s(np.array([[[1.0] * 3], [[2.0] * 3]]), np.zeros((2, 1, 2)))[0])  # (M + P - 1) * (f + b)
    18.0
    """
    lanes = [list(order(schedule, num_stages, s, num_micro_batches)) for s in range(num_stages)]
    kinds = tuple(k for k in OpKind if k in {kind for kind, _ in lanes[0]})
    graph = _run(lanes, kinds, num_micro_batches)
    return Timeline(num_stages, kinds, len(graph.own), graph.levels())


@dataclass
class _Graph:
    """Operations in an order in which they can run; -1 is the start of everything."""

    own: list[int]
    other: list[int]
    edge: list[int]
    column: list[int]
    depth: list[int]

    def levels(self) -> tuple[_Level, ...]:
        depth = np.array(self.depth, dtype=np.intp)
        by_level = np.argsort(depth, kind="stable")
        number = np.empty(len(depth) + 1, dtype=np.intp)  # old -> new; the last entry (-1) is the start of everything
        number[by_level] = np.arange(len(depth))
        number[-1] = len(depth)
        own, other = (number[np.array(x, dtype=np.intp)][by_level] for x in (self.own, self.other))
        edge, column = (np.array(x, dtype=np.intp)[by_level] for x in (self.edge, self.column))
        bounds = np.concatenate([[0], np.cumsum(np.bincount(depth))])
        return tuple(
            _Level(int(a), int(b), own[a:b], other[a:b], edge[a:b], column[a:b]) for a, b in itertools.pairwise(bounds)
        )


def _run(lanes: list[list[Computation]], kinds: tuple[OpKind, ...], count: int) -> _Graph:
    """Runs the program once, symbolically: visits stages until none gets further; each stops at what it waits for."""
    num_stages, free = len(lanes), 2 * (len(lanes) - 1)
    graph = _Graph([], [], [], [], [])
    own, others, edges, columns, depth = graph.own, graph.other, graph.edge, graph.column, graph.depth
    column_of = {kind: i * num_stages for i, kind in enumerate(kinds)}
    results = {k: [[-1] * count for _ in lanes] for k in kinds}
    back = OpKind.BACKWARD_INPUT if OpKind.BACKWARD_INPUT in results else OpKind.BACKWARD
    position, last = [0] * num_stages, [-1] * num_stages
    left = sum(map(len, lanes))
    while left:
        before = left
        for s, lane in enumerate(lanes):
            previous, first = last[s], position[s]
            above = results[OpKind.FORWARD][s - 1] if s else None
            below = results[back][s + 1] if s + 1 < num_stages else None
            for kind, m in itertools.islice(lane, first, None):
                other, edge = -1, free
                if kind is OpKind.FORWARD:
                    if above is not None:
                        other, edge = above[m], s - 1
                elif kind is back and below is not None:
                    other, edge = below[m], num_stages - 1 + s
                if other < 0 and edge < free:
                    break
                node = len(own)
                level = 0 if previous < 0 else depth[previous] + 1
                if other >= 0 and depth[other] >= level:
                    level = depth[other] + 1
                own.append(previous)
                others.append(other)
                edges.append(edge)
                columns.append(column_of[kind] + s)
                depth.append(level)
                results[kind][s][m] = previous = node
                position[s] += 1
            last[s] = previous
            left -= position[s] - first
        if left == before:
            raise ValueError("program waits for ever")
    return graph
