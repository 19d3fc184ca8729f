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

from resihp_plan.cluster import Health
from resihp_plan.cost import CostModel, StageCost
from resihp_plan.edges import Place
from resihp_plan.owners import volumes
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
    """Steps that determine the makespan, in time order: each begins when the one before it ends."""


def simulate(
    plan: ParallelPlan,
    program: Program,
    work: Work,
    cost: CostModel,
    *,
    health: Health | None = None,
    volume_of: Mapping[tuple[int, ...], int] | None = None,
) -> Simulation:
    """Simulate a checked program. `work`: [replica][micro-batch]; `volume_of`: `volumes` of this plan, if at hand.

    Raises ValueError if `work` does not fit the plan, and for a program that waits for ever.

    Three equal stages, free links: (M + P - 1) * (f + b), the closed form of 1F1B.

    >>> from resihp_plan import ModelSpec, ReplicaPlan, StagePlan, program
    >>> stages = tuple(StagePlan(s, s + 1, (s,), (1,)) for s in range(3))
    >>> plan = ParallelPlan(epoch=1, replicas=(ReplicaPlan(stages, num_micro_batches=4),))
    >>> cost = CostModel(ModelSpec(num_layers=3), attention_s=0.5, mlp_s=0.5, square_s=0.0, head_s=0.0)
    >>> simulate(plan, program(plan), ((MicroBatchWork(1, 1),) * 4,), cost).makespan_s
    18.0
    """
    known = volumes(plan, cost.model) if volume_of is None else volume_of
    return synchronise(plan, run_pipelines(plan, program, work, cost, health), known, cost)


What = Op | str | tuple[int, ...]


@dataclass
class _Node:
    """A step with the predecessor that determined its start."""

    what: What
    """A bucket is its owners."""
    start: float
    stop: float
    before: _Node | None


@dataclass(frozen=True)
class PipelineRun:
    """When each rank is done with its operations, why then, and how long it computed."""

    clock: Mapping[int, float]
    last: Mapping[int, _Node | None]
    busy: Mapping[int, float]


def run_pipelines(
    plan: ParallelPlan, program: Program, work: Work, cost: CostModel, health: Health | None = None
) -> PipelineRun:
    """Simulate the operations of the plan's active ranks, without the synchronisation after them."""
    given, planned = [len(w) for w in work], [r.num_micro_batches for r in plan.replicas]
    if given != planned:
        raise ValueError(f"work of {given} micro-batches for a plan with {planned}")
    lanes = {
        Place(a, s): _Lane(
            program.ops[stage.ranks[0]],
            cost.stage_cost(stage, last=s == len(replica.stages) - 1, health=health),
            len(stage.ranks),
            cost.link(stage.ranks),
        )
        for a, replica in enumerate(plan.replicas)
        for s, stage in enumerate(replica.stages)
    }
    _Run(lanes, work, cost).run()
    clock: dict[int, float] = {}
    last: dict[int, _Node | None] = {}
    busy: dict[int, float] = {}
    for place, lane in lanes.items():
        for t, rank in enumerate(plan.replicas[place.replica].stages[place.stage].ranks):
            clock[rank], last[rank], busy[rank] = lane.clock, lane.last, lane.member_busy(t, work)
    return PipelineRun(clock, last, busy)


Edge = tuple[OpKind, Place, Place]


class _Lane:
    """One place: its operations, how far it is, and its clock."""

    def __init__(self, ops: tuple[Op, ...], cost: StageCost, degree: int, link: float) -> None:
        self.ops, self.cost, self.degree, self.link = ops, cost, degree, link
        self.position = 0
        self.clock = 0.0
        self.last: _Node | None = None
        self._seconds: dict[tuple[MicroBatchWork, OpKind], float] = {}

    def compute(self, op: Op, work: MicroBatchWork) -> None:
        seconds = self._seconds.get((work, op.kind))
        if seconds is None:
            seconds = self._seconds[work, op.kind] = self.cost.stage_op_s(work, op.kind)
        self.last = _Node(op, self.clock, self.clock + seconds, self.last)
        self.clock = self.last.stop

    def arrive(self, node: _Node) -> None:
        """Resource edge against data edge: the later one determines when the next operation starts."""
        if node.stop > self.clock:
            self.clock, self.last = node.stop, node

    def member_busy(self, index: int, work: Work) -> float:
        return sum(
            self.cost.member_op_s(index, work[op.replica][op.micro_batch], op.kind)
            for op in self.ops
            if op.kind.is_compute
        )


class _Run:
    """Messages in flight between lanes. The times do not depend on the order in which lanes are visited."""

    def __init__(self, lanes: Mapping[Place, _Lane], work: Work, cost: CostModel) -> None:
        self.lanes, self.work, self.cost = lanes, work, cost
        self.in_flight: dict[Edge, deque[_Node]] = {}
        self.ready = deque(lanes)
        self.waiting: dict[Edge, Place] = {}

    def run(self) -> None:
        while self.ready:
            place = self.ready.popleft()
            lane = self.lanes[place]
            while lane.position < len(lane.ops) and self._step(place, lane, lane.ops[lane.position]):
                lane.position += 1
        if self.waiting:
            raise ValueError(f"program waits for ever on {min(self.waiting)}: check_program would have refused it")

    def _step(self, place: Place, lane: _Lane, op: Op) -> bool:
        """Execute one operation; False if it must wait for a message."""
        if op.kind.is_compute:
            lane.compute(op, self.work[op.replica][op.micro_batch])
            return True
        assert op.peer is not None  # transfers have one
        if op.kind.is_send:
            edge = (op.kind, place, op.peer)
            peer, tokens = self.lanes[op.peer], self.work[op.replica][op.micro_batch].tokens
            seconds = self.cost.transfer_s(lane.degree, peer.degree, tokens, min(lane.link, peer.link))
            node = _Node(op, lane.clock, lane.clock + seconds, lane.last)
            self.in_flight.setdefault(edge, deque()).append(node)
            if edge in self.waiting:
                self.ready.append(self.waiting.pop(edge))
            return True
        edge = (MATCHING_SEND[op.kind], op.peer, place)
        if not self.in_flight.get(edge):
            self.waiting[edge] = place
            return False
        lane.arrive(self.in_flight[edge].popleft())
        return True


def synchronise(
    plan: ParallelPlan, run: PipelineRun, volume_of: Mapping[tuple[int, ...], int], cost: CostModel
) -> Simulation:
    """Gradient buckets and vote after the pipelines; `volume_of`: `volumes` of the plan."""
    idle = dict.fromkeys(plan.world, 0.0)
    clock, busy = {**idle, **run.clock}, {**idle, **run.busy}
    last: dict[int, _Node | None] = {**dict.fromkeys(plan.world), **run.last}
    pipeline_s = max(clock.values())
    for owners, num_elements in volume_of.items():
        if len(owners) > 1:
            seconds = cost.all_reduce_s(len(owners), num_elements, cost.link(owners))
            _join(owners, owners, seconds, clock, last)
    vote = cost.latency_s(len(plan.world)) if len(plan.world) > 1 else 0.0
    _join(plan.world, "vote", vote, clock, last)
    makespan = max(clock.values())
    return Simulation(
        makespan_s=makespan,
        pipeline_s=pipeline_s,
        busy_s=MappingProxyType(busy),
        idle_s=MappingProxyType({r: makespan - b for r, b in busy.items()}),
        critical_path=_path(last[plan.world[0]]),
    )


def _join(
    ranks: Sequence[int],
    what: str | tuple[int, ...],
    seconds: float,
    clock: dict[int, float],
    last: dict[int, _Node | None],
) -> None:
    """A collective starts when its last member arrives and ends for all members together."""
    latest = max(ranks, key=lambda r: (clock[r], -r))
    node = _Node(what, clock[latest], clock[latest] + seconds, last[latest])
    for rank in ranks:
        clock[rank], last[rank] = node.stop, node


def _path(node: _Node | None) -> tuple[Step, ...]:
    path: list[Step] = []
    while node is not None:
        what = f"bucket {'-'.join(map(str, node.what))}" if isinstance(node.what, tuple) else str(node.what)
        path.append(Step(what, node.start, node.stop))
        node = node.before
    return tuple(reversed(path))
