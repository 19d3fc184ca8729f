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
    return _Compiler(lanes, num_micro_batches).compile()


class _Compiler:
    """Runs the program once, symbolically: who waits for whom."""

    def __init__(self, lanes: list[list[Computation]], count: int) -> None:
        self.lanes, self.count = lanes, count
        present = {kind for kind, _ in lanes[0]}
        self.kinds = tuple(k for k in OpKind if k in present)
        self.own: list[int] = []
        self.other: list[int] = []
        self.edge: list[int] = []
        self.column: list[int] = []
        self.depth: list[int] = []

    def compile(self) -> Timeline:
        """Visits stages until none gets further; a stage stops at what it must wait for."""
        num_stages = len(self.lanes)
        forward = [[-1] * self.count for _ in range(num_stages)]
        backward = [[-1] * self.count for _ in range(num_stages)]
        position, last = [0] * num_stages, [-1] * num_stages
        moved = True
        while moved:
            moved = False
            for s, lane in enumerate(self.lanes):
                start = i = position[s]
                while i < len(lane):
                    kind, m = lane[i]
                    edge, other = 2 * (num_stages - 1), -1
                    if kind is OpKind.FORWARD:
                        if s > 0:
                            edge, other = s - 1, forward[s - 1][m]
                    elif kind is not OpKind.BACKWARD_WEIGHT and s + 1 < num_stages:
                        edge, other = num_stages - 1 + s, backward[s + 1][m]
                    if other < 0 and edge < 2 * (num_stages - 1):
                        break
                    last[s] = self._add(last[s], other, edge, self.kinds.index(kind) * num_stages + s)
                    if kind is OpKind.FORWARD:
                        forward[s][m] = last[s]
                    elif kind is not OpKind.BACKWARD_WEIGHT:
                        backward[s][m] = last[s]
                    i += 1
                position[s] = i
                moved = moved or i > start
        if any(p < len(lane) for p, lane in zip(position, self.lanes, strict=True)):
            raise ValueError("program waits for ever")
        return Timeline(num_stages, self.kinds, len(self.own), self._levels())

    def _add(self, own: int, other: int, edge: int, column: int) -> int:
        self.own.append(own)
        self.other.append(other)
        self.edge.append(edge)
        self.column.append(column)
        before = max(self.depth[own] if own >= 0 else -1, self.depth[other] if other >= 0 else -1)
        self.depth.append(before + 1)
        return len(self.own) - 1

    def _levels(self) -> tuple[_Level, ...]:
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
