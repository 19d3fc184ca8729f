"""Programs of replicas that execute units of each other: a deterministic list schedule (Graham 1969).

A discrete-event run with nominal times decides in which order each place takes what has arrived. What was taken in an
order that could happen can be run in that order by everybody: so there is no circle of waits, whatever the real times.

Rules of a free place: a backward if one is there (it releases memory and the previous stage), else a forward if fewer
than P - s micro-batches are in flight, as under 1F1B, else with split backward a late weight half. With split backward
at most P micro-batches hold activations, as under ZB-H1. Messages of an edge are taken in the order of their sending.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from resihp_plan.edges import Place
from resihp_plan.operation import Op, OpKind, backward_ops, forward_ops, weight_op
from resihp_plan.plan import ParallelPlan, Schedule

_Unit = tuple[int, int]
"""(replica, micro-batch) at a known stage."""
_OWN = Place(-1, -1)
"""Sender of what a place has from itself: the batch at the first stage, outputs at the last one."""


@dataclass
class _Queues:
    """What has arrived, by sender, in order."""

    by_sender: dict[Place, deque[tuple[float, _Unit]]] = field(default_factory=dict)

    def put(self, sender: Place, at: float, unit: _Unit) -> None:
        self.by_sender.setdefault(sender, deque()).append((at, unit))

    def take(self, now: float) -> _Unit | None:
        """The oldest of the heads; equal ages: lower micro-batch, then lower replica."""
        heads = [(q[0][0], q[0][1][::-1], p) for p, q in self.by_sender.items() if q and q[0][0] <= now]
        return self.by_sender[min(heads)[2]].popleft()[1] if heads else None


@dataclass
class _Station:
    """A place with its nominal times, its limits and what waits there."""

    place: Place
    seconds: float
    """Of a forward, of each half of a backward."""
    num_stages: int
    forwards: _Queues = field(default_factory=_Queues)
    backwards: _Queues = field(default_factory=_Queues)
    late: deque[_Unit] = field(default_factory=deque)
    in_flight: int = 0
    free_at: float = 0.0
    ops: list[Op] = field(default_factory=list)

    def choose(self, now: float) -> tuple[OpKind, _Unit] | None:
        if (unit := self.backwards.take(now)) is not None:
            return OpKind.BACKWARD, unit
        limits = self.in_flight < self.num_stages - self.place.stage, self.in_flight + len(self.late) < self.num_stages
        if all(limits) and (unit := self.forwards.take(now)) is not None:
            return OpKind.FORWARD, unit
        return (OpKind.BACKWARD_WEIGHT, self.late.popleft()) if self.late else None


def list_schedule(plan: ParallelPlan, replicas: Collection[int]) -> Mapping[Place, tuple[Op, ...]]:
    """Operations of every place of `replicas`, which exchange units among themselves only."""
    return _ListSchedule(plan, replicas).run()


class _ListSchedule:
    def __init__(self, plan: ParallelPlan, replicas: Collection[int]) -> None:
        self.plan = plan
        self.split = plan.schedule is Schedule.ZB_H1
        self.stations = {
            Place(a, s): _Station(
                Place(a, s), (st.layer_stop - st.layer_start) / len(st.ranks), len(plan.replicas[a].stages)
            )
            for a in sorted(replicas)
            for s, st in enumerate(plan.replicas[a].stages)
        }
        self.events: list[tuple[float, Place]] = []
        units = [(m, a) for a in sorted(replicas) for m in range(plan.replicas[a].num_micro_batches)]
        for m, a in sorted(units):
            self._deliver(OpKind.FORWARD, _OWN, Place(plan.executor(a, 0, m), 0), 0.0, (a, m))

    def run(self) -> Mapping[Place, tuple[Op, ...]]:
        while self.events:
            now, place = heapq.heappop(self.events)
            station = self.stations[place]
            if station.free_at <= now and (chosen := station.choose(now)) is not None:
                self._execute(station, now, *chosen)
        return {place: tuple(station.ops) for place, station in self.stations.items()}

    def _deliver(self, kind: OpKind, sender: Place, receiver: Place, at: float, unit: _Unit) -> None:
        station = self.stations[receiver]
        (station.forwards if kind is OpKind.FORWARD else station.backwards).put(sender, at, unit)
        heapq.heappush(self.events, (at, receiver))

    def _execute(self, station: _Station, now: float, kind: OpKind, unit: _Unit) -> None:
        whole = kind is OpKind.BACKWARD and not self.split
        station.free_at = now + station.seconds * (2 if whole else 1)
        station.ops += self._operations(station, kind, unit)
        if kind is OpKind.FORWARD:
            station.in_flight += 1
        elif kind is OpKind.BACKWARD:
            station.in_flight -= 1
            if self.split:
                station.late.append(unit)
        if kind is not OpKind.BACKWARD_WEIGHT:
            self._pass_on(station, kind, unit)
        heapq.heappush(self.events, (station.free_at, station.place))

    def _operations(self, station: _Station, kind: OpKind, unit: _Unit) -> Iterator[Op]:
        (a, m), s = unit, station.place.stage
        if kind is OpKind.FORWARD:
            yield from forward_ops(self.plan, a, s, m)
        elif kind is OpKind.BACKWARD_WEIGHT:
            yield weight_op(self.plan, a, s, m)
        else:
            yield from backward_ops(self.plan, a, s, m, OpKind.BACKWARD_INPUT if self.split else OpKind.BACKWARD)

    def _pass_on(self, station: _Station, kind: OpKind, unit: _Unit) -> None:
        """Output to the next stage, gradient to the previous one; the last stage turns round."""
        (a, m), here = unit, station.place
        next_stage = here.stage + (1 if kind is OpKind.FORWARD else -1)
        if next_stage < 0:
            return
        if next_stage == len(self.plan.replicas[a].stages):
            self._deliver(OpKind.BACKWARD, _OWN, here, station.free_at, unit)
        else:
            there = Place(self.plan.executor(a, next_stage, m), next_stage)
            self._deliver(kind, here, there, station.free_at, unit)
