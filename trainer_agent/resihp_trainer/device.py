"""The virtual device clock: a rank that computes as long as its nominal work takes on the device that it stands for.

With more workers than cores, real slowness cannot be produced (quotas and signals disturb the neighbours too). So each
compute segment is padded to `nominal seconds / p`, and counts as that: ratios between devices, and between plans, are
then faithful on any host that is fast enough. Everything that reports says that the clock is virtual.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from resihp_messages import ClockConfig
from resihp_plan import CostModel, MicroBatchWork, ModelSpec, OpKind, ParallelPlan, StageCost

_SLICE_S = 0.02
"""Longest sleep without a sign of life and without a look at the speed and at aborts."""
_RESOLUTION_S = 1e-6
"""What is left below this is not slept: no clock and no scheduler would notice."""


@dataclass
class Device:
    """How fast this rank's device is, relative to its healthy self: p, with 1 for healthy. Training thread only."""

    clock: Callable[[], float] = time.monotonic
    _p: float = 1.0
    _until: float | None = None

    def set_speed(self, p: float, for_s: float = 0.0) -> None:
        """Run at `p` from now on, or for `for_s` seconds if that is above 0. Raises ValueError unless 0 < p <= 1."""
        if not 0.0 < p <= 1.0:
            raise ValueError(f"a device's speed is above 0 and at most 1 of its healthy one, got {p}")
        self._p = p
        self._until = self.clock() + for_s if for_s > 0 else None

    @property
    def p(self) -> float:
        """Now."""
        if self._until is not None and self.clock() >= self._until:
            self._p, self._until = 1.0, None
        return self._p


@dataclass(frozen=True)
class VirtualClock:
    """Pads the compute segments of one rank in one epoch."""

    device: Device
    stage: StageCost
    member: int
    """Index of this rank in the TP group."""
    pause: Callable[[float], None]
    """Sleeps (at most 20 ms at a time), shows a sign of life, raises what an aborted epoch raises."""

    @classmethod
    def of(
        cls,
        config: ClockConfig,
        device: Device,
        model: ModelSpec,
        plan: ParallelPlan,
        rank: int,
        pause: Callable[[float], None],
    ) -> VirtualClock | None:
        """None if the job's clock is real, or for a rank without a stage."""
        position = plan.position(rank)
        if not config.virtual or position is None:
            return None
        replica, s, member = position
        stages = plan.replicas[replica].stages
        cost = CostModel.for_model(model, flops_per_s=config.flops_per_s)
        return cls(device, cost.stage_cost(stages[s], last=s == len(stages) - 1), member, pause)

    def pad(self, work: MicroBatchWork, kind: OpKind, spent_s: float, busy_s: float | None = None) -> float:
        """Wait for the rest of an operation that took `spent_s`; returns its seconds on this device.

        `busy_s`: the processor time in it (None: all of it). If that is more than the nominal seconds, the host is too
        slow for the clock, and says so by its reports; what other processes of the host took is no part of the device.
        """
        return pad(self.device, self.stage.member_op_s(self.member, work, kind), spent_s, self.pause, busy_s)


def pad(
    device: Device, nominal_s: float, spent_s: float, pause: Callable[[float], None], busy_s: float | None = None
) -> float:
    """Wait for the rest of what takes a healthy device `nominal_s`; returns the seconds on this device."""
    busy_s = spent_s if busy_s is None else busy_s
    while (left := nominal_s / device.p - spent_s) > _RESOLUTION_S:
        begin = device.clock()
        pause(min(left, _SLICE_S))
        spent_s += device.clock() - begin
    return max(nominal_s / device.p, busy_s)
