"""Programs of replicas that execute units of each other: a deterministic list schedule (Graham 1969).

A discrete-event run with nominal times decides in which order each place takes what has arrived. What was taken in an
order that could happen can be run in that order by everybody: so there is no circle of waits, whatever the real times.

Rules of a free place: a backward if one is there (it releases memory and the previous stage), else a forward if no more
are in flight than under the closed form of the schedule, else with split backward a late weight half. Messages of an
edge are taken in the order of their sending.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from resihp_plan.edges import Place
from resihp_plan.operation import Op, OpKind, unit_ops
from resihp_plan.plan import ParallelPlan, StagePlan

Unit = tuple[int, int]
"""(replica, micro-batch) at a known stage."""
Arrivals = list[tuple[float, int, int]]
"""A heap of (time, micro-batch, replica). A place sends one thing after the other, so times keep the order of each
sender."""


@dataclass(frozen=True)
class Taken:
    """A decision of the run: what a place does next."""

    place: Place
    kind: OpKind
    replica: int
    """Whose unit it is."""
    micro_batch: int


def list_schedule(plan: ParallelPlan, replicas: Collection[int]) -> Mapping[Place, tuple[Op, ...]]:
    """Operations of every place of `replicas`, which exchange units among themselves only."""
    ops: dict[Place, list[Op]] = {Place(a, s): [] for a in replicas for s in range(len(plan.replicas[a].stages))}
    for t in list_order(plan, replicas):
        ops[t.place] += unit_ops(plan, t.replica, t.place.stage, t.micro_batch, t.kind)
    return {place: tuple(each) for place, each in ops.items()}


def list_order(plan: ParallelPlan, replicas: Collection[int]) -> tuple[Taken, ...]:
    """All decisions in the order of time: each comes after everything that it waits for."""
    nominal: dict[Place, tuple[float, float]] = {}
    for a in replicas:
        for s, stage in enumerate(plan.replicas[a].stages):
            each = (stage.layer_stop - stage.layer_start) * _slowest(stage, plan.speed_of)
            nominal[Place(a, s)] = (each, each if plan.schedule.splits_backward else 2 * each)
    return ListSchedule(plan, replicas, nominal).run()


def _slowest(stage: StagePlan, speed_of: Mapping[int, float]) -> float:
    """Relative time of a layer: the largest share for its member's speed."""
    total = sum(stage.weights)
    return max(w / total / speed_of.get(r, 1.0) for r, w in zip(stage.ranks, stage.weights, strict=True))


@dataclass
class Station:
    """A place with its times, its limits and what waits there."""

    place: Place
    forward_s: float
    backward_s: float
    """Of a whole backward, or of each of its halves."""
    most_open: int
    """Forwards without backward."""
    most_held: int
    """The same with the late weight halves."""
    forwards: Arrivals = field(default_factory=list)
    backwards: Arrivals = field(default_factory=list)
    late: deque[Unit] = field(default_factory=deque)
    open: int = 0
    free_at: float = 0.0

    def has_backward(self, now: float) -> bool:
        return bool(self.backwards) and self.backwards[0][0] <= now

    @property
    def has_room(self) -> bool:
        """For the activations of one more micro-batch."""
        return self.open < self.most_open and self.open + len(self.late) < self.most_held

    def choose(self, now: float) -> tuple[OpKind, Unit] | None:
        """What to do next, taken out of its queue; None if nothing can be done now."""
        if self.has_backward(now):
            _, m, a = heapq.heappop(self.backwards)
            return OpKind.BACKWARD, (a, m)
        if self.has_room and self.forwards and self.forwards[0][0] <= now:
            _, m, a = heapq.heappop(self.forwards)
            return OpKind.FORWARD, (a, m)
        return (OpKind.BACKWARD_WEIGHT, self.late.popleft()) if self.late else None


class ListSchedule:
    """The run. Subclasses may decide otherwise what a free place does, and where a unit is executed."""

    def __init__(
        self, plan: ParallelPlan, replicas: Collection[int], seconds: Mapping[Place, tuple[float, float]]
    ) -> None:
        """`seconds`: of a forward, and of a backward or each of its halves."""
        self.plan = plan
        self.split = plan.schedule.splits_backward
        self.backward = OpKind.BACKWARD_INPUT if self.split else OpKind.BACKWARD
        self.stations: dict[Place, Station] = {}
        for a in sorted(replicas):
            num_stages = len(plan.replicas[a].stages)
            for s in range(num_stages):
                most_open = plan.schedule.most_open(num_stages, s)
                most_held = plan.schedule.in_flight(num_stages, s, mixed=True)
                self.stations[Place(a, s)] = Station(Place(a, s), *seconds[Place(a, s)], most_open, most_held)
        self.events: list[tuple[float, Place]] = []
        self.taken: list[Taken] = []
        for a in sorted(replicas):
            for m in range(plan.replicas[a].num_micro_batches):
                self.deliver(OpKind.FORWARD, Place(self.executor(a, 0, m), 0), 0.0, (a, m))

    def run(self) -> tuple[Taken, ...]:
        """Until nothing is left to do."""
        while self.events:
            now, place = heapq.heappop(self.events)
            station = self.stations[place]
            if station.free_at <= now and (chosen := self.choose(station, now)) is not None:
                self._execute(station, now, *chosen)
        return tuple(self.taken)

    def executor(self, replica: int, stage: int, micro_batch: int) -> int:
        """Where a unit goes when its input is there, and where its backward goes."""
        return self.plan.executor(replica, stage, micro_batch)

    def choose(self, station: Station, now: float) -> tuple[OpKind, Unit] | None:
        """What a free place does next."""
        return station.choose(now)

    def deliver(self, kind: OpKind, receiver: Place, at: float, unit: Unit) -> None:
        """A unit's input is there, or the gradient of its output."""
        station = self.stations[receiver]
        heapq.heappush(station.forwards if kind is OpKind.FORWARD else station.backwards, (at, unit[1], unit[0]))
        heapq.heappush(self.events, (at, receiver))

    def _execute(self, station: Station, now: float, kind: OpKind, unit: Unit) -> None:
        station.free_at = now + (station.forward_s if kind is OpKind.FORWARD else station.backward_s)
        self.taken.append(Taken(station.place, self.backward if kind is OpKind.BACKWARD else kind, *unit))
        if kind is OpKind.FORWARD:
            station.open += 1
        elif kind is OpKind.BACKWARD:
            station.open -= 1
            if self.split:
                station.late.append(unit)
        if kind is not OpKind.BACKWARD_WEIGHT:
            self._pass_on(station, kind, unit)
        heapq.heappush(self.events, (station.free_at, station.place))

    def _pass_on(self, station: Station, kind: OpKind, unit: Unit) -> None:
        """Output to the next stage, gradient to the previous one; the last stage turns round."""
        (a, m), here = unit, station.place
        next_stage = here.stage + (1 if kind is OpKind.FORWARD else -1)
        if next_stage < 0:
            return
        if next_stage == len(self.plan.replicas[a].stages):
            self.deliver(OpKind.BACKWARD, here, station.free_at, unit)
        else:
            self.deliver(kind, Place(self.executor(a, next_stage, m), next_stage), station.free_at, unit)
