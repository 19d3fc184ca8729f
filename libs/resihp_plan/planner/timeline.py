"""Many simulations of one program at once: the dependencies are worked out once, the times by numpy for a whole batch.

The schedule comes from `program`, the semantics are those of `simulate` (paper, Eq. 2); a test keeps the two equal. It
covers replicas that do not exchange work, whose micro-batches are all alike: what the planner compares.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from resihp_plan.plan import ParallelPlan, ReplicaPlan, Schedule, StagePlan
from resihp_plan.program import MATCHING_SEND, Op, OpKind, program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


@dataclass(frozen=True)
class _Level:
    """Operations that depend only on earlier levels: [operation, predecessor]."""

    nodes: Ints
    before: Ints
    """Predecessors; the node before all (time 0) fills the rows up."""
    edge: Ints
    """Column of the transfer that each predecessor's result takes; the last column is 0 seconds."""
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
            arrived = stop[level.before] + edges[level.edge]
            stop[level.nodes] = arrived.max(axis=1) + seconds[level.seconds]
        found: Floats = stop.max(axis=0)
        return found


@lru_cache(maxsize=256)
def timeline(schedule: Schedule, num_stages: int, num_micro_batches: int) -> Timeline:
    """The timeline of a replica. Raises ValueError for a schedule whose program waits for ever.

    >>> t = timeline(Schedule.ONE_F_ONE_B, 3, 4)
    >>> float(t.makespan_s(np.array([[[1.0] * 3], [[2.0] * 3]]), np.zeros((2, 1, 2)))[0])  # (M + P - 1) * (f + b)
    18.0
    """
    stages = tuple(StagePlan(s, s + 1, (s,), (1,)) for s in range(num_stages))
    alone = ParallelPlan(0, (ReplicaPlan(stages, num_micro_batches),), schedule=schedule)
    ops = program(alone).ops
    return _Compiler([ops[s] for s in range(num_stages)]).compile()


class _Compiler:
    """Runs the program once, symbolically: who waits for whom."""

    def __init__(self, lanes: list[tuple[Op, ...]]) -> None:
        self.lanes = lanes
        self.kinds = tuple(k for k in OpKind if k.is_compute and any(op.kind is k for lane in lanes for op in lane))
        self.before: list[list[tuple[int, int]]] = []
        self.column: list[int] = []
        self.depth: list[int] = []

    def compile(self) -> Timeline:
        num_stages = len(self.lanes)
        sent: dict[tuple[OpKind, int, int], deque[int]] = defaultdict(deque)
        position = [0] * num_stages
        last: list[int | None] = [None] * num_stages
        arrived: list[list[tuple[int, int]]] = [[] for _ in self.lanes]
        moved = True
        while moved:
            moved = False
            for s, lane in enumerate(self.lanes):
                while position[s] < len(lane):
                    op = lane[position[s]]
                    if op.kind.is_compute:
                        previous = last[s]
                        before = arrived[s] if previous is None else [(previous, 2 * (num_stages - 1)), *arrived[s]]
                        last[s] = self._add(before, self.kinds.index(op.kind) * num_stages + s)
                        arrived[s] = []
                    elif op.kind.is_send:
                        node = last[s]
                        assert node is not None
                        assert op.peer is not None
                        assert not arrived[s]
                        sent[op.kind, s, op.peer.stage].append(node)
                    else:
                        assert op.peer is not None
                        queue = sent[MATCHING_SEND[op.kind], op.peer.stage, s]
                        if not queue:
                            break
                        first = 0 if op.kind is OpKind.RECV_ACT else num_stages - 1
                        arrived[s].append((queue.popleft(), first + min(s, op.peer.stage)))
                    position[s] += 1
                    moved = True
        if any(p < len(lane) for p, lane in zip(position, self.lanes, strict=True)):
            raise ValueError("program waits for ever")
        return Timeline(num_stages, self.kinds, len(self.before), self._levels())

    def _add(self, before: list[tuple[int, int]], column: int) -> int:
        self.before.append(before)
        self.column.append(column)
        self.depth.append(1 + max((self.depth[n] for n, _ in before), default=-1))
        return len(self.before) - 1

    def _levels(self) -> tuple[_Level, ...]:
        by_depth: dict[int, list[int]] = defaultdict(list)
        for node, depth in enumerate(self.depth):
            by_depth[depth].append(node)
        start, free = len(self.before), 2 * (len(self.lanes) - 1)
        levels = []
        for depth in sorted(by_depth):
            nodes = by_depth[depth]
            width = max(1, *(len(self.before[n]) for n in nodes))
            rows = [[*self.before[n], *[(start, free)] * (width - len(self.before[n]))] for n in nodes]
            table = np.array(rows, dtype=np.intp)
            levels.append(
                _Level(
                    np.array(nodes, dtype=np.intp),
                    table[:, :, 0],
                    table[:, :, 1],
                    np.array([self.column[n] for n in nodes], dtype=np.intp),
                )
            )
        return tuple(levels)
