"""Healthy iteration time from the plan: the critical path of its program (paper, Eq. 2; `resihp_plan.simulate`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from resihp_plan import CostModel, ParallelPlan, Work, program, simulate
from resihp_plan.owners import volumes

_COARSE = np.exp2(np.arange(-4.0, 4.5, 0.5))
"""Candidates for the cost of squared lengths, relative to the operation count."""
_FINE = np.exp2(np.arange(-0.375, 0.5, 0.125))
"""Candidates around the best of those, relative to it: steps of 9 %."""


@dataclass(frozen=True)
class _Fit:
    """One candidate: what it costs, all seconds times what, and how far off its predictions are (ratios)."""

    cost: CostModel
    scale: float
    deviation: float
    """Median, absolute."""
    error: float
    """Mean, absolute."""


class ScheduleTime:
    """Predicts iteration seconds of one plan; `learn` fits the two numbers that operation counts do not give."""

    def __init__(self, plan: ParallelPlan, cost: CostModel) -> None:
        self._plan, self._cost = plan, cost
        self._program, self._volumes = program(plan), volumes(plan, cost.model)
        self._scale = 1.0

    def seconds(self, work: Work) -> float:
        """Predicted healthy seconds. Raises ValueError if `work` ([replica][micro-batch]) does not fit the plan."""
        return self._scale * self._makespan(work, self._cost)

    @property
    def fitted(self) -> tuple[float, float]:
        """What `learn` found: seconds per squared length, and the scale of all seconds. Can be set."""
        return self._cost.square_s, self._scale

    @fitted.setter
    def fitted(self, value: tuple[float, float]) -> None:
        square_s, self._scale = value
        self._cost = replace(self._cost, square_s=square_s)

    @property
    def places(self) -> tuple[str, ...]:
        """Names of all stages, in the order of `effects`."""
        return tuple(f"R{a}.S{s}" for a, replica in enumerate(self._plan.replicas) for s in range(len(replica.stages)))

    def effects(self, work: Work, *, slowdown: float = 1.25) -> tuple[float, ...]:
        """For every stage: log factor by which the iteration would be longer if one device of it were slow."""
        healthy = self._makespan(work, self._cost)
        stages = (stage for replica in self._plan.replicas for stage in replica.stages)
        return tuple(
            math.log(self._makespan(work, self._cost, {stage.ranks[0]: 1.0 / slowdown}) / healthy) for stage in stages
        )

    def learn(self, works: Sequence[Work], observed_s: Sequence[float]) -> float:
        """Fit speed and the weight of squared lengths to healthy iterations; returns the mean absolute error as a
        ratio.

        Speed is the median of observed / predicted, robust against hiccups; the weight is the candidate with the
        least median deviation, on a coarse grid and then on a fine one. Raises ValueError for fewer than 3 iterations.
        """
        times = np.asarray(observed_s, dtype=np.float64)
        ok = np.isfinite(times) & (times > 0)
        if len(works) != len(times) or ok.sum() < 3:
            raise ValueError(f"{len(works)} works and {int(ok.sum())} usable times: at least 3 pairs are needed")
        kept = [work for work, good in zip(works, ok, strict=True) if good]
        for ratios in (_COARSE, _FINE):
            best = min((self._fit(kept, times[ok], float(ratio)) for ratio in ratios), key=lambda fit: fit.deviation)
            self._cost = best.cost
        self._scale = best.scale
        return best.error

    def _fit(self, works: Sequence[Work], times: npt.NDArray[np.float64], ratio: float) -> _Fit:
        """With squared lengths weighed `ratio` times as much as now."""
        cost = replace(self._cost, square_s=self._cost.square_s * ratio)
        log = np.log(times / np.array([self._makespan(work, cost) for work in works]))
        middle = float(np.median(log))
        deviation, error = np.median(np.abs(log - middle)), np.mean(np.abs(np.expm1(log - middle)))
        return _Fit(cost, float(np.exp(middle)), float(deviation), float(error))

    def _makespan(self, work: Work, cost: CostModel, health: Mapping[int, float] | None = None) -> float:
        return simulate(self._plan, self._program, work, cost, health=health, volume_of=self._volumes).makespan_s
