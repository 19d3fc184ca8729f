"""Slow devices named, healthy ones left alone: seeded streams with everything that makes healthy iterations differ."""

from __future__ import annotations

from collections.abc import Callable

import msgpack
import numpy as np
import numpy.typing as npt
import pytest

from resihp_detect import DeviceLevel, PeerConfig, Verdict, VerdictKind

Floats = npt.NDArray[np.float64]
Change = Callable[[int, Floats], None]


def stream(
    seed: int, num_devices: int, iterations: int, change: Change, noise: float = 0.02
) -> list[tuple[Floats, Floats]]:
    """Forward and backward seconds of one group whose lengths vary by a factor of three from device to device."""
    rng = np.random.default_rng(seed)
    offset = np.exp(rng.normal(0, 0.01, (1, num_devices, 1)))
    frames = []
    for i in range(1, iterations + 1):
        squares = rng.uniform(0.5e9, 1.5e9, (1, num_devices, 1))
        work = np.concatenate([np.full_like(squares, 8.0), np.full_like(squares, 65536.0), squares], axis=2)
        seconds = (0.05 + 2e-10 * squares) * offset * np.array([1.0, 2.0]) * np.exp(rng.normal(0, noise, squares.shape))
        change(i, seconds)
        frames.append((seconds, work))
    return frames


def judge(frames: list[tuple[Floats, Floats]], config: PeerConfig | None = None) -> list[Verdict]:
    names = [f"r{d}" for d in range(frames[0][0].shape[1])]
    level = DeviceLevel({"stage 0": names}, config, num_directions=2)
    return [v for i, (seconds, work) in enumerate(frames, 1) for v in level.observe(i, seconds, work)]


def told(verdicts: list[Verdict]) -> list[tuple[str, str | None]]:
    return [(str(v.kind), v.device) for v in verdicts]


def slow(device: int, ratio: float, start: int, stop: int = 10**9) -> Change:
    def change(i: int, seconds: Floats) -> None:
        if start <= i < stop:
            seconds[0, device] *= ratio

    return change


@pytest.mark.parametrize(("ratio", "within"), [(1.1, 20), (1.2, 6), (2.0, 3)])
def test_a_slow_device_is_named_in_time_with_its_severity_and_clears(ratio: float, within: int) -> None:
    found = judge(stream(1, 16, 140, slow(5, ratio, 60, 100)))
    assert told(found) == [("DeviceSlow", "r5"), ("DeviceRecovered", "r5")]
    alarm, clear = found
    assert alarm.iteration - 60 < within
    assert alarm.first_iteration == pytest.approx(60, abs=3)
    assert alarm.p_low <= 1 / ratio <= alarm.p_high
    assert alarm.confidence > 0.99
    assert 100 <= clear.iteration <= 120


def test_healthy_devices_raise_nothing_whatever_the_lengths_and_hiccups() -> None:
    rng = np.random.default_rng(9)

    def hiccups(_: int, seconds: Floats) -> None:
        seconds *= np.where(rng.random((1, 16, 1)) < 0.01, rng.uniform(1.3, 5.0), 1.0)

    assert judge(stream(2, 16, 600, hiccups)) == []


def test_two_peers_suffice_and_a_faster_peer_is_no_fault() -> None:
    assert told(judge(stream(3, 2, 100, slow(1, 1.3, 60)))) == [("DeviceSlow", "r1")]
    assert judge(stream(3, 2, 100, slow(1, 1 / 1.3, 60))) == []


def test_several_at_once_and_a_second_fault_of_the_same_device() -> None:
    def change(i: int, seconds: Floats) -> None:
        slow(2, 1.5, 50, 80)(i, seconds)
        slow(7, 1.3, 50)(i, seconds)
        slow(2, 1.5, 110)(i, seconds)

    kinds = told(judge(stream(4, 16, 140, change)))
    assert kinds.count(("DeviceSlow", "r2")) == 2
    assert kinds.count(("DeviceSlow", "r7")) == 1
    assert kinds.count(("DeviceRecovered", "r2")) == 1
    assert len(kinds) == 4


def test_born_slow_is_found_when_the_warm_up_ends() -> None:
    (verdict,) = judge(stream(5, 16, 60, slow(3, 1.2, 0)))
    assert (verdict.kind, verdict.device, verdict.iteration) == (VerdictKind.DEVICE_SLOW, "r3", 22)
    assert verdict.p == pytest.approx(1 / 1.2, rel=0.05)
    assert verdict.evidence["born_slow"] is True


def test_a_mixed_fleet_is_heterogeneity_once_and_never_a_fault() -> None:
    def generations(_: int, seconds: Floats) -> None:
        seconds[0, :6] *= 1.25

    (verdict,) = judge(stream(6, 16, 300, generations))
    assert verdict.kind is VerdictKind.HETEROGENEITY
    assert set(verdict.evidence["relative_speed"]) >= {f"r{d}" for d in range(6)}
    assert not verdict.kind.is_alarm


def test_a_common_change_is_a_workload_shift_and_the_next_fault_is_seen() -> None:
    def change(i: int, seconds: Floats) -> None:
        if i >= 60:
            seconds *= 1.4
        slow(4, 1.3, 120)(i, seconds)

    found = judge(stream(7, 16, 150, change))
    assert told(found) == [("WorkloadShift", None), ("DeviceSlow", "r4")]
    assert found[0].evidence["level_change"] == pytest.approx(0.4, abs=0.1)


def test_broken_numbers_and_missing_reports_count_as_missing() -> None:
    rng = np.random.default_rng(1)

    def broken(i: int, seconds: Floats) -> None:
        slow(5, 1.5, 60)(i, seconds)
        seconds[0, rng.integers(0, 16), 0] = rng.choice([np.nan, np.inf, -1.0, 0.0])
        if i in (30, 31, 62):
            seconds[:] = np.nan

    assert told(judge(stream(8, 16, 90, broken))) == [("DeviceSlow", "r5")]


def test_announced_phases_and_compilation_are_not_judged() -> None:
    def spikes(i: int, seconds: Floats) -> None:
        if i <= 2:
            seconds *= 40.0

    frames = stream(9, 16, 80, spikes)
    level = DeviceLevel({"s": [f"r{d}" for d in range(16)]}, num_directions=2)
    found: list[Verdict] = []
    for i, (seconds, work) in enumerate(frames, 1):
        evaluation = 50 <= i < 60
        seconds[0, 3] *= 3.0 if evaluation else 1.0
        found += level.observe(i, seconds, work, benign=evaluation)
    assert found == []
    fits = level.healthy_time("s")
    assert fits is not None
    assert fits[0].sigma == pytest.approx(0.022, rel=0.4)


def test_noise_widens_the_thresholds_instead_of_alarming() -> None:
    assert judge(stream(10, 16, 300, slow(0, 1.0, 0), noise=0.15)) == []


@pytest.mark.parametrize("cut", [10, 45, 63])
def test_a_restored_snapshot_goes_on_exactly(cut: int) -> None:
    frames = stream(11, 16, 110, slow(5, 1.2, 60, 80))
    groups = {"s": [f"r{d}" for d in range(16)]}
    first, whole = DeviceLevel(groups, num_directions=2), []
    for i, (seconds, work) in enumerate(frames, 1):
        if i == cut + 1:
            state = msgpack.packb(first.snapshot())
        whole.append(first.observe(i, seconds, work))
    second = DeviceLevel(groups, num_directions=2)
    second.restore(msgpack.unpackb(state))
    again = [second.observe(i, *frames[i - 1]) for i in range(cut + 1, 111)]
    assert again == whole[cut:]
    assert len(state) / 16 < 10_000 or cut < 22  # bytes per device once the warm-up rows are gone
    with pytest.raises(ValueError, match="does not fit"):
        DeviceLevel({"other": ["a"]}, num_directions=2).restore(msgpack.unpackb(state))


def test_the_next_epoch_is_judged_at_once_with_scaled_healthy_time() -> None:
    frames = stream(12, 16, 50, slow(5, 1.3, 30))
    old = DeviceLevel({"s": [f"r{d}" for d in range(16)]}, PeerConfig(skip=0), num_directions=2)
    for i, (seconds, work) in enumerate(frames, 1):
        old.observe(i, seconds, work)
    assert old.scores()["r5"][0] == pytest.approx(1 / 1.3, rel=0.05)
    new = old.successor({"t": [f"r{d}" for d in range(15)]}, {"t": ("s", 2.0)})
    assert new.scores()["r5"][0] == pytest.approx(1 / 1.3, rel=0.05)
    found: list[Verdict] = []
    for i in range(51, 60):
        seconds, work = frames[i - 20]
        seconds, work = 2.0 * seconds[:, :15].copy(), work[:, :15]
        seconds[0, 2] *= 1.5 if i >= 54 else 1.0
        found += new.observe(i, seconds, work)
    assert told(found) == [("DeviceSlow", "r2")]
    with pytest.raises(ValueError, match="no healthy time of"):
        old.successor({"t": ["r0"]}, {"t": ("unknown", 1.0)})


def test_wrong_shapes_and_thresholds_are_refused() -> None:
    level = DeviceLevel({"s": ["a", "b"]})
    with pytest.raises(ValueError, match="expected seconds"):
        level.observe(1, np.ones((1, 3, 1)), np.ones((1, 3, 3)))
    with pytest.raises(ValueError, match="in two groups"):
        DeviceLevel({"s": ["a"], "t": ["a"]})
    with pytest.raises(ValueError, match="0 < k < clip < h"):
        PeerConfig(k=0.3)
