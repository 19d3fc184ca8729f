"""The virtual device clock, on a clock that only sleeping moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from resihp_messages import ClockConfig
from resihp_plan import CostModel, MicroBatchWork, OpKind, ParallelPlan
from resihp_trainer.device import Device, VirtualClock
from support.trainer_cases import HEALTHY, SPEC

WORK = MicroBatchWork(48, 1200)
CONFIG = ClockConfig(virtual=True, flops_per_s=1e7)


@dataclass
class Time:
    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def clock_of(time: Time, device: Device, rank: int = 0, plan: ParallelPlan = HEALTHY) -> VirtualClock:
    made = VirtualClock.of(CONFIG, device, SPEC, plan, rank, time.pause)
    assert made is not None
    return made


def nominal(kind: OpKind, rank: int = 0) -> float:
    position = HEALTHY.position(rank)
    assert position is not None
    a, s, t = position
    cost = CostModel.for_model(SPEC, flops_per_s=CONFIG.flops_per_s)
    return cost.stage_cost(HEALTHY.replicas[a].stages[s], last=s == 1).member_op_s(t, WORK, kind)


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("kind", [k for k in OpKind if k.is_compute])
def test_a_segment_takes_its_nominal_time_whatever_the_host_needed(kind: OpKind, rank: int) -> None:
    time = Time()
    virtual = clock_of(time, Device(time), rank)
    for spent in (0.0, 0.25 * nominal(kind, rank)):
        assert virtual.pad(WORK, kind, spent) == pytest.approx(nominal(kind, rank), abs=2e-6)
    assert sum(time.slept) == pytest.approx(1.75 * nominal(kind, rank), abs=2e-6)
    assert max(time.slept) <= 0.02


def test_halves_of_a_backward_add_up_to_the_whole() -> None:
    halves = nominal(OpKind.BACKWARD_INPUT) + nominal(OpKind.BACKWARD_WEIGHT)
    assert halves == pytest.approx(nominal(OpKind.BACKWARD), rel=1e-12)
    assert nominal(OpKind.BACKWARD) == pytest.approx(2 * nominal(OpKind.FORWARD), rel=1e-12)


def test_a_host_that_is_too_slow_reports_its_own_time() -> None:
    time = Time()
    assert clock_of(time, Device(time)).pad(WORK, OpKind.FORWARD, 9.0) == 9.0
    assert not time.slept


def test_a_slow_device_takes_longer_for_as_long_as_it_is_slow() -> None:
    time = Time()
    device = Device(time)
    virtual, healthy = clock_of(time, device), nominal(OpKind.FORWARD)
    device.set_speed(0.5, for_s=10.0)
    assert virtual.pad(WORK, OpKind.FORWARD, 0.0) == pytest.approx(2 * healthy, abs=2e-6)
    time.now += 10.0
    assert device.p == 1.0
    assert virtual.pad(WORK, OpKind.FORWARD, 0.0) == pytest.approx(healthy, abs=2e-6)
    device.set_speed(0.25)
    time.now += 1000.0
    assert device.p == 0.25
    with pytest.raises(ValueError, match=r"got 0\.0"):
        device.set_speed(0.0)


def test_real_clocks_and_standby_ranks_are_not_padded() -> None:
    time = Time()
    assert VirtualClock.of(ClockConfig(), Device(time), SPEC, HEALTHY, 0, time.pause) is None
    assert VirtualClock.of(CONFIG, Device(time), SPEC, HEALTHY, 99, time.pause) is None
