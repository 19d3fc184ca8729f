"""The compute probe: real seconds of the processor, or those of the device that is played."""

from __future__ import annotations

import pytest

from resihp_messages import ClockConfig
from resihp_trainer.corruption import flip_bit
from resihp_trainer.device import Device
from resihp_trainer.probe import OPERATIONS, REPEATS, Probe


class Time:
    def __init__(self) -> None:
        self.now, self.slept = 0.0, 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_on_a_virtual_clock_it_takes_its_nominal_time_on_the_device() -> None:
    time = Time()
    device = Device(time)
    probe = Probe(ClockConfig(virtual=True, flops_per_s=1e6), device, time)
    nominal = OPERATIONS / 1e6
    assert probe.seconds(time.pause) == pytest.approx(nominal, rel=1e-3)
    device.set_speed(0.5)
    assert probe.seconds(time.pause) == pytest.approx(2.0 * nominal, rel=1e-3)
    assert time.slept == pytest.approx(3.0 * REPEATS * nominal, rel=1e-2)


def test_on_a_real_clock_it_is_not_padded() -> None:
    time = Time()
    assert 0.0 < Probe(ClockConfig(), Device(time)).seconds(time.pause) < 60.0
    assert time.slept == 0.0


def test_a_flipped_bit_changes_one_element_a_little() -> None:
    import torch

    from resihp_plan import layout
    from resihp_trainer.shards import ShardSet
    from support.trainer_cases import HEALTHY, SPEC

    for dtype in (torch.float32, torch.float64):
        held = ShardSet.initial(layout(HEALTHY, SPEC), 6, seed=1, dtype=dtype, tick=lambda: None)
        before = {name: shard.parameter.clone() for name, shard in held.shards.items()}
        name = flip_bit(held)
        changed = {n: (held.shards[n].parameter != before[n]) for n in before}
        assert {n for n, where in changed.items() if where.any()} == {name}
        assert int(changed[name].sum()) == 1  # type: ignore[index]
        old, new = before[name].view(-1)[0], held.shards[name].parameter.view(-1)[0]  # type: ignore[index]
        assert 0 < abs(float(new - old)) < abs(float(old))
