"""Predict one iteration of a program: earliest start times over data and resource edges (paper, Eq. 2).

The members of a TP group share their collectives, so an operation runs at a place (replica, stage) as long as its
slowest member needs. A send occupies nobody; its receiver waits for the end of the computation before it plus the
transfer. After its last operation a rank reduces its gradient buckets in their common order, then all ranks vote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from resihp_plan.buckets import Bucket, gradient_buckets
from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel, StageCost
from resihp_plan.edges import Place
from resihp_plan.plan import ParallelPlan
from resihp_plan.program import MATCHING_SEND, Op, OpKind, Program
from resihp_plan.workload import MicroBatchWork, Work


@dataclass(frozen=True)
class Step:
    """A piece of the iteration with its earliest times, in seconds from the start."""

    what: str
    """The operation in words, `bucket 0-4` or `vote`."""
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Simulation:
    """One predicted iteration."""

    makespan_s: float
    """Until the vote is over."""
    pipeline_s: float
    """Until the last backward is over; the rest is gradient synchronisation."""
    busy_s: Mapping[int, float]
    """Rank -> its own compute seconds (a fast member waits for the slowest one of its group: that is idle time)."""
    idle_s: Mapping[int, float]
    """Rank -> makespan minus busy."""
    critical_path: tuple[Step, ...]
    """Steps that determine the makespan, in time order: none of them can start before the one before it ends."""


def simulate(
    plan: ParallelPlan,
    program: Program,
    work: Work,
    cost: CostModel,
    *,
    health: Health | None = None,
    buckets: Sequence[Bucket] | None = None,
) -> Simulation:
    """Simulate a checked program. `work`: [replica][micro-batch]; `buckets`: of this plan, if they are at hand.

    Raises ValueError if `work` does not fit the plan, and for a program that waits for ever.
    """
    shape = tuple(len(w) for w in work)
    if shape != tuple(r.num_micro_batches for r in plan.replicas):
        raise ValueError(
            f"work of {shape} micro-batches for a plan with {[r.num_micro_batches for r in plan.replicas]}"
        )
    run = _Run(plan, program, work, cost, health)
    run.pipeline()
    pipeline_s = max(run.clock.values(), default=0.0)
    known = gradient_buckets(plan, cost.model) if buckets is None else buckets
    makespan, path = _synchronise(plan, run, known, cost)
    return Simulation(
        makespan_s=makespan,
        pipeline_s=pipeline_s,
        busy_s=MappingProxyType(run.busy),
        idle_s=MappingProxyType({r: makespan - b for r, b in run.busy.items()}),
        critical_path=path,
    )


@dataclass
class _Node:
    """A step with the predecessor that determined its start."""

    what: str
    start: float
    stop: float
    before: _Node | None


class _Run:
    """State of one simulation: a clock per place, messages in flight per edge."""

    def __init__(
        self, plan: ParallelPlan, program: Program, work: Work, cost: CostModel, health: Health | None
    ) -> None:
        self.plan, self.work, self.cost = plan, work, cost
        self.ops: dict[Place, tuple[Op, ...]] = {}
        self.stage: dict[Place, StageCost] = {}
        for a, replica in enumerate(plan.replicas):
            for s, stage in enumerate(replica.stages):
                place = Place(a, s)
                self.ops[place] = program.ops[stage.ranks[0]]
                self.stage[place] = cost.stage_cost(stage, last=s == len(replica.stages) - 1, health=health)
        self.clock = dict.fromkeys(self.ops, 0.0)
        self.last: dict[Place, _Node | None] = dict.fromkeys(self.ops)
        self.busy: dict[int, float] = dict.fromkeys(plan.world, 0.0)
        self.arrived: dict[tuple[OpKind, Place, Place], deque[tuple[float, _Node | None]]] = {}
        self._seconds: dict[tuple[Place, MicroBatchWork, bool], float] = {}

    def pipeline(self) -> None:
        """Run all operations. The times do not depend on the order in which places are visited."""
        position = dict.fromkeys(self.ops, 0)
        ready, waiting = deque(self.ops), dict[tuple[OpKind, Place, Place], Place]()
        while ready:
            place = ready.popleft()
            ops = self.ops[place]
            while position[place] < len(ops):
                op = ops[position[place]]
                if op.kind.is_compute:
                    self._compute(place, op)
                elif op.kind.is_send:
                    assert op.peer is not None
                    edge = (op.kind, place, op.peer)
                    self._send(edge, op)
                    if edge in waiting:
                        ready.append(waiting.pop(edge))
                else:
                    assert op.peer is not None
                    edge = (MATCHING_SEND[op.kind], op.peer, place)
                    if not self.arrived.get(edge):
                        waiting[edge] = place
                        break
                    self._receive(place, edge)
                position[place] += 1
        if waiting:
            raise ValueError(f"program waits for ever on {sorted(waiting)[0]}: check_program would have refused it")

    def _compute(self, place: Place, op: Op) -> None:
        backward = op.kind is OpKind.BACKWARD
        work = self.work[op.replica][op.micro_batch]
        key = (place, work, backward)
        if key not in self._seconds:
            self._seconds[key] = self.stage[place].stage_s(work, backward=backward)
        start = self.clock[place]
        stop = start + self._seconds[key]
        self.clock[place] = stop
        self.last[place] = _Node(str(op), start, stop, self.last[place])
        for t, rank in enumerate(self.plan.replicas[place.replica].stages[place.stage].ranks):
            self.busy[rank] += self.stage[place].member_s(t, work, backward=backward)

    def _send(self, edge: tuple[OpKind, Place, Place], op: Op) -> None:
        _, source, target = edge
        replicas = self.plan.replicas
        senders = len(replicas[source.replica].stages[source.stage].ranks)
        receivers = len(replicas[target.replica].stages[target.stage].ranks)
        tokens = self.work[op.replica][op.micro_batch].tokens
        start = self.clock[source]
        stop = start + self.cost.transfer_s(senders, receivers, tokens)
        self.arrived.setdefault(edge, deque()).append((stop, _Node(str(op), start, stop, self.last[source])))

    def _receive(self, place: Place, edge: tuple[OpKind, Place, Place]) -> None:
        arrival, node = self.arrived[edge].popleft()
        # Resource edge against data edge: the later one determines when the next operation starts.
        if arrival > self.clock[place]:
            self.clock[place] = arrival
            self.last[place] = node


def _synchronise(
    plan: ParallelPlan, run: _Run, buckets: Sequence[Bucket], cost: CostModel
) -> tuple[float, tuple[Step, ...]]:
    clock = dict.fromkeys(plan.world, 0.0)
    last: dict[int, _Node | None] = dict.fromkeys(plan.world)
    for place in run.ops:
        for rank in plan.replicas[place.replica].stages[place.stage].ranks:
            clock[rank], last[rank] = run.clock[place], run.last[place]
    for bucket in buckets:
        if bucket.is_shared:
            seconds = cost.all_reduce_s(len(bucket.owners), bucket.num_elements)
            _join(bucket.owners, f"bucket {'-'.join(map(str, bucket.owners))}", seconds, clock, last)
    vote = cost.collective_latency_s if len(plan.world) > 1 else 0.0
    _join(plan.world, "vote", vote, clock, last)
    path: list[Step] = []
    node = last[plan.world[0]]
    while node is not None:
        path.append(Step(node.what, node.start, node.stop))
        node = node.before
    return max(clock.values()), tuple(reversed(path))


def _join(
    ranks: Sequence[int], what: str, seconds: float, clock: dict[int, float], last: dict[int, _Node | None]
) -> None:
    """A collective starts when its last member arrives and ends for all members together."""
    latest = max(ranks, key=lambda r: (clock[r], -r))
    node = _Node(what, clock[latest], clock[latest] + seconds, last[latest])
    for rank in ranks:
        clock[rank], last[rank] = node.stop, node
