"""Which units of a stage other replicas execute: by quota, or as the paper's Algorithm 1 finds it.

Both take seconds per unit, forward and backward together, as [replica][stage]; infinite where nobody works. All
replicas have the same layers. Both are exact about what must hold (each unit once) and heuristic about the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from math import inf

from resihp_plan.edges import Place
from resihp_plan.list_schedule import ListSchedule, Station
from resihp_plan.operation import OpKind
from resihp_plan.plan import Migration, ParallelPlan
from resihp_plan.planner.level import level

UnitSeconds = Sequence[Sequence[float]]
Migrations = tuple[Migration, ...]


def by_quota(unit_s: UnitSeconds, counts: Sequence[int], *, sparing: bool = False) -> Migrations | None:
    """Each stage's units are divided by its groups' speeds (exact min-max); None if a stage has no group.

    `sparing`: a group gives away only what it cannot do in the time that the slowest stage needs anyway.

    >>> [(m.micro_batch, m.executor) for m in by_quota([[1.0], [3.0]], [4, 4])]
    [(1, 0), (3, 0)]
    """
    total, found, quotas = sum(counts), [], []
    for s in range(len(unit_s[0])):
        alive = [a for a, row in enumerate(unit_s) if row[s] < inf]
        shares = level([0.0] * len(alive), [unit_s[a][s] for a in alive], total)
        if not alive or shares is None:
            return None
        quotas.append(dict(zip(alive, shares, strict=True)))
    pace = max(n * unit_s[a][s] for s, quota in enumerate(quotas) for a, n in quota.items())
    for s, quota in enumerate(quotas):
        loads = [n * row[s] for n, row in zip(counts, unit_s, strict=True) if n]
        enough = pace if sparing else max(n * unit_s[a][s] for a, n in quota.items())
        if max(loads) <= enough * (1 + 1e-9):
            continue  # nobody would be over earlier
        found += list(
            _given(s, counts, [_kept(n, unit_s[a][s], quota.get(a, 0), enough) for a, n in enumerate(counts)], quota)
        )
    return tuple(found)


def _kept(own: int, each_s: float, quota: int, enough_s: float) -> int:
    """How many of its own units a group keeps: its quota, or what it can do in time."""
    return min(own, max(quota, 0 if each_s == inf else int(enough_s / each_s * (1 + 1e-9))))


def _given(stage: int, counts: Sequence[int], kept: Sequence[int], quota: dict[int, int]) -> Iterator[Migration]:
    """What is not kept goes to those below their quota, evenly spaced in the order of micro-batches."""
    room = {a: quota[a] - kept[a] for a in quota if quota[a] > kept[a]}
    for a, (own, keep) in enumerate(zip(counts, kept, strict=True)):
        give = own - keep
        for i in range(give):
            m = ((2 * i + 1) * own) // (2 * give)
            takers = [b for b in room if b != a and room[b] > 0]
            if not takers:
                return
            b = max(takers, key=lambda b: (room[b] / quota[b], -b))
            room[b] -= 1
            yield Migration(a, stage, m, b)


def algorithm_1(plan: ParallelPlan, unit_s: UnitSeconds, backward_ratio: float, delta: int) -> Migrations | None:
    """Paper, section 6, Algorithm 1, as a simulated greedy: a free group takes the next pending unit of a replica that
    is more than `delta` forwards behind it at this stage, or that has no group there. None if a stage has no group
    or no room.

    `plan`: layers, micro-batches and schedule; its own migrations are ignored. Simplified: progress is compared when a
    group is free to run a forward; memory is the schedule's bound on what is in flight.
    """
    if any(all(row[s] == inf for row in unit_s) for s in range(len(unit_s[0]))):
        return None
    return _Progress(ParallelPlan(0, plan.replicas, schedule=plan.schedule), unit_s, backward_ratio, delta).migrations()


class _Progress(ListSchedule):
    def __init__(self, plan: ParallelPlan, unit_s: UnitSeconds, ratio: float, delta: int) -> None:
        self.delta = delta
        self.executed_by: dict[tuple[int, int, int], int] = {}
        self.completed: dict[Place, int] = {}
        halves = ratio / (2.0 if plan.schedule.splits_backward else 1.0)
        each = {Place(a, s): t / (1 + ratio) for a, row in enumerate(unit_s) for s, t in enumerate(row)}
        super().__init__(plan, range(len(unit_s)), {p: (t, t * halves) for p, t in each.items()})

    def migrations(self) -> Migrations | None:
        self.run()
        units = sum(len(r.stages) * r.num_micro_batches for r in self.plan.replicas)
        if len(self.executed_by) < units:
            return None  # memory: nobody had room for what was left
        return tuple(Migration(a, s, m, b) for (a, s, m), b in sorted(self.executed_by.items()) if a != b)

    def executor(self, replica: int, stage: int, micro_batch: int) -> int:
        return self.executed_by.get((replica, stage, micro_batch), replica)

    def deliver(self, kind: OpKind, receiver: Place, at: float, unit: tuple[int, int]) -> None:
        super().deliver(kind, receiver, at, unit)
        if kind is OpKind.FORWARD:  # others may want it
            for a in range(len(self.plan.replicas)):
                heapq.heappush(self.events, (at, Place(a, receiver.stage)))

    def choose(self, station: Station, now: float) -> tuple[OpKind, tuple[int, int]] | None:
        place = station.place
        if station.forward_s == inf:
            return None
        if not station.has_backward(now) and station.has_room:
            behind = self._behind(place, now)
            if behind is not None:
                _, m, a = heapq.heappop(self.stations[behind].forwards)
                return self._done(place, OpKind.FORWARD, (a, m))
        chosen = station.choose(now)
        return None if chosen is None else self._done(place, *chosen)

    def _done(self, place: Place, kind: OpKind, unit: tuple[int, int]) -> tuple[OpKind, tuple[int, int]]:
        if kind is OpKind.FORWARD:
            self.executed_by[unit[0], place.stage, unit[1]] = place.replica
            self.completed[place] = self.completed.get(place, 0) + 1
        return kind, unit

    def _behind(self, place: Place, now: float) -> Place | None:
        """The place with the least progress whose next unit this one should take."""
        found: tuple[float, Place] | None = None
        own = self.stations[place].forwards
        for a in range(len(self.plan.replicas)):
            other = Place(a, place.stage)
            pending = self.stations[other].forwards
            if other == place or not pending or pending[0][0] > now:
                continue
            gone = self.stations[other].forward_s == inf
            done = self.completed.get(other, 0)
            if gone and own and own[0] < pending[0]:
                continue  # its own turn
            if (gone or self.completed.get(place, 0) - done > self.delta) and (
                found is None or (-1.0 if gone else done, other) < found
            ):
                found = (-1.0 if gone else done, other)
        return None if found is None else found[1]
