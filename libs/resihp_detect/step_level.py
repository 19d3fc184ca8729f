"""Jobs that tell only step times and lengths: is an iteration longer than its work explains?

What each rank's step took is collected per iteration; the job's step is that of its slowest rank. The plan's schedule,
fitted to the first iterations, predicts it from the lengths of the micro-batches (`ScheduleTime`); without lengths
every step should take as long as any other. The ratio is judged by `IterationLevel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from resihp_detect.config import PeerConfig
from resihp_detect.iteration_level import IterationConfig, IterationLevel
from resihp_detect.schedule_time import ScheduleTime
from resihp_detect.verdict import Verdict
from resihp_plan import CostModel, MicroBatchWork, ModelSpec, ParallelPlan, Work

JOB = "job"
"""Group of its verdicts."""
_GRACE = 2
"""An iteration is judged without the ranks that are still missing when so many later ones are complete."""
_MAX_PENDING = 64


@dataclass
class _Step:
    """One iteration, as far as it was reported."""

    seconds: dict[int, float] = field(default_factory=dict)
    works: dict[int, tuple[MicroBatchWork, ...]] = field(default_factory=dict)
    """Replica -> its micro-batches."""


class StepLevel:
    """Of one plan. Iterations are judged in order; reports may come in any order and twice."""

    def __init__(self, plan: ParallelPlan, model: ModelSpec, config: PeerConfig | None = None) -> None:
        peers = config or PeerConfig()
        self._plan, self._model = plan, model
        self._num_learned = peers.skip + peers.warmup
        self._level = IterationLevel(IterationConfig(peers), job=JOB)
        self._pending: dict[int, _Step] = {}
        self._closed = 0
        self._first: list[tuple[int, Work | None, float]] = []
        """Iterations from which the schedule is learned; they are judged when that is done."""
        self._schedule: ScheduleTime | None = None
        self._counts: tuple[int, ...] = ()
        """Micro-batches of each replica, if the schedule is known."""
        self._is_learned = False

    def note(
        self, iteration: int, rank: int, step_s: float, works: Sequence[MicroBatchWork] = ()
    ) -> tuple[Verdict, ...]:
        """What one rank's step took; `works`: its micro-batches, if their lengths are known. Steps that are not
        positive count as missing."""
        position = self._plan.position(rank)
        if position is None or iteration <= self._closed or not step_s > 0:
            return ()
        step = self._pending.setdefault(iteration, _Step())
        step.seconds[rank] = step_s
        if works:
            step.works.setdefault(position[0], tuple(works))
        return tuple(v for i in self._ready() for v in self._close(i))

    def _ready(self) -> list[int]:
        """The pending iterations that can be judged, in order."""
        found = []
        complete = [i for i, step in self._pending.items() if len(step.seconds) == len(self._plan.active)]
        for i in sorted(self._pending):
            later = sum(j > i for j in complete)
            if not (i in complete or later >= _GRACE or len(self._pending) > _MAX_PENDING):
                break
            found.append(i)
        return found

    def _close(self, iteration: int) -> tuple[Verdict, ...]:
        step = self._pending.pop(iteration)
        self._closed = iteration
        seconds, work = max(step.seconds.values()), self._work(step)
        if self._is_learned:
            return self._level.observe(iteration, seconds, self._predict(work))
        self._first.append((iteration, work, seconds))
        if len(self._first) < self._num_learned:
            return ()
        self._learn()
        first, self._first = self._first, []
        return tuple(v for i, w, s in first for v in self._level.observe(i, s, self._predict(w)))

    def _work(self, step: _Step) -> Work | None:
        if len(step.works) != len(self._plan.replicas):
            return None
        return tuple(step.works[a] for a in range(len(self._plan.replicas)))

    def _learn(self) -> None:
        """Fit the schedule to the iterations whose lengths are known, if these are enough."""
        self._is_learned = True
        known = [(w, s) for _, w, s in self._first if w is not None]
        if 2 * len(known) <= len(self._first):
            return
        self._counts = tuple(len(units) for units in known[0][0])
        fitting = [(w, s) for w, s in known if self._fits(w)]
        if len(fitting) < 3:
            return
        self._schedule = self._unlearned()
        self._schedule.learn([w for w, _ in fitting], [s for _, s in fitting])

    def _unlearned(self) -> ScheduleTime:
        replicas = tuple(
            replace(r, num_micro_batches=n) for r, n in zip(self._plan.replicas, self._counts, strict=True)
        )
        return ScheduleTime(replace(self._plan, replicas=replicas), CostModel.for_model(self._model))

    def _fits(self, work: Work) -> bool:
        return tuple(len(units) for units in work) == self._counts

    def _predict(self, work: Work | None) -> float:
        """Healthy seconds, or 1 if nothing is known of the work; NaN if this one cannot be compared with the others."""
        if self._schedule is None:
            return 1.0
        return self._schedule.seconds(work) if work is not None and self._fits(work) else float("nan")

    @property
    def is_slow(self) -> bool:
        return self._level.is_slow

    # --- restarts -------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "closed": self._closed,
            "pending": [
                [i, sorted(step.seconds.items()), [[a, _plain(units)] for a, units in sorted(step.works.items())]]
                for i, step in self._pending.items()
            ],
            "first": [[i, None if w is None else [_plain(units) for units in w], s] for i, w, s in self._first],
            "learned": self._is_learned,
            "counts": list(self._counts),
            "schedule": self._schedule.fitted if self._schedule is not None else None,
            "level": self._level.snapshot(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot of the same plan, with this one's thresholds."""
        self._level.restore(state["level"])
        self._closed, self._is_learned = state["closed"], state["learned"]
        self._pending = {
            i: _Step(dict(map(tuple, seconds)), {a: _units(units) for a, units in works})
            for i, seconds, works in state["pending"]
        }
        self._first = [(i, None if w is None else tuple(map(_units, w)), s) for i, w, s in state["first"]]
        self._counts = tuple(state["counts"])
        self._schedule = None
        if state["schedule"] is not None:
            self._schedule = self._unlearned()
            self._schedule.fitted = tuple(state["schedule"])


def _plain(units: Sequence[MicroBatchWork]) -> list[list[int]]:
    return [[unit.tokens, unit.sum_sq_len] for unit in units]


def _units(plain: Sequence[Sequence[int]]) -> tuple[MicroBatchWork, ...]:
    return tuple(MicroBatchWork(tokens, squares) for tokens, squares in plain)
