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
    """Kinds of computation that the schedule has, in the order of `stops_s`'s first axis."""
    num_nodes: int
    levels: tuple[_Level, ...]
    ends: Ints
    """Per stage: its last operation."""

    def stops_s(self, compute_s: Floats, transfer_s: Floats) -> Floats:
        """[batch, stage]: seconds until the last backward of each stage is over.

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
        found: Floats = stop[self.ends].T
        return found


@lru_cache(maxsize=512)
def timeline(schedule: Schedule, num_stages: int, num_micro_batches: int) -> Timeline:
    """The timeline of a replica. Raises ValueError for a schedule whose program waits for ever.

    >>> t = timeline(Schedule.ONE_F_ONE_B, 3, 4)
    >>> float(t.stops_s(np.array([[[1.0] * 3], [[2.0] * 3]]), np.zeros((2, 1, 2))).max())  # (M + P - 1) * (f + b)
    18.0
    """
    lanes = [list(order(schedule, num_stages, s, num_micro_batches)) for s in range(num_stages)]
    kinds = tuple(k for k in OpKind if k in {kind for kind, _ in lanes[0]})
    levels, ends = _levels(lanes, kinds, num_micro_batches)
    return Timeline(num_stages, kinds, num_stages * len(lanes[0]), levels, ends)


def _levels(lanes: list[list[Computation]], kinds: tuple[OpKind, ...], count: int) -> tuple[tuple[_Level, ...], Ints]:
    """All operations by level, and which is the last of each stage. Before that they are numbered lane by lane."""
    num_stages, length, free = len(lanes), len(lanes[0]), 2 * (len(lanes) - 1)
    first = {kind: i * count for i, kind in enumerate(kinds)}
    codes = np.array([[first[kind] + m for kind, m in lane] for lane in lanes], dtype=np.intp)
    place = np.empty_like(codes)  # [stage, code]: where in its lane
    np.put_along_axis(place, codes, np.broadcast_to(np.arange(length), codes.shape), axis=1)
    nodes = np.arange(num_stages * length).reshape(num_stages, length)
    own, other = np.full_like(nodes, -1), np.full_like(nodes, -1)
    own[:, 1:] = nodes[:, :-1]
    edge = np.full_like(nodes, free)
    kind_of = codes // count
    back = OpKind.BACKWARD_INPUT if OpKind.BACKWARD_INPUT in kinds else OpKind.BACKWARD
    for s in range(num_stages):
        if s:
            _wait(s, s - 1, kind_of[s] == kinds.index(OpKind.FORWARD), s - 1, codes, place, other, edge)
        if s + 1 < num_stages:
            _wait(s, s + 1, kind_of[s] == kinds.index(back), num_stages - 1 + s, codes, place, other, edge)
    depth = _depths(other).ravel()
    by_level = np.argsort(depth, kind="stable")
    number = np.empty(depth.size + 1, dtype=np.intp)  # old -> new; the last entry (-1) is the start of everything
    number[by_level] = np.arange(depth.size)
    number[-1] = depth.size
    own, other = (number[x.ravel()[by_level]] for x in (own, other))
    column = (kind_of * num_stages + np.arange(num_stages)[:, None]).ravel()[by_level]
    edge = edge.ravel()[by_level]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(depth))]).tolist()
    levels = (_Level(a, b, own[a:b], other[a:b], edge[a:b], column[a:b]) for a, b in itertools.pairwise(bounds))
    return tuple(levels), number[nodes[:, -1]]


def _wait(
    s: int, at: int, which: npt.NDArray[np.bool_], via: int, codes: Ints, place: Ints, other: Ints, edge: Ints
) -> None:
    """Operations `which` of stage `s` wait for the same of stage `at`."""
    other[s, which] = at * codes.shape[1] + place[at, codes[s, which]]
    edge[s, which] = via


def _depths(other: Ints) -> Ints:
    """[stage, operation]: the longest chain of operations before each. Stage by stage, down and up the pipeline, until
    nothing changes: about as often as a micro-batch's slot is used again."""
    num_stages, length = other.shape
    depth = np.zeros_like(other)
    flat, steps = depth.ravel(), np.arange(length)  # `flat` is a view
    waits = other >= 0
    sweep = [*range(num_stages), *range(num_stages - 2, -1, -1)]
    while True:
        before = int(depth.sum())
        for s in sweep:
            ready = np.where(waits[s], flat[other[s]] + 1, 0)
            depth[s] = np.maximum.accumulate(ready - steps) + steps
        if int(depth.sum()) == before:
            return depth
        if int(depth.max()) >= depth.size:
            raise ValueError("program waits for ever")
