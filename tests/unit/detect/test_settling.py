"""A new share of the work: the device finds its new normal before it is judged, and stays as slow as it was."""

from __future__ import annotations

import numpy as np

from resihp_detect import DeviceLevel, PeerConfig, Verdict

NAMES = tuple(f"r{d}" for d in range(4))
CONFIG = PeerConfig(settle=10)


class Played:
    """One group; every device has a factor of seconds."""

    def __init__(self, noise: float = 0.02) -> None:
        self.level = DeviceLevel({"s": NAMES}, CONFIG)
        self.factor = np.ones(4)
        self.found: list[Verdict] = []
        self._rng, self._noise, self._iteration = np.random.default_rng(1), noise, 0

    def go_on(self, iterations: int) -> None:
        for _ in range(iterations):
            self._iteration += 1
            work = np.stack([np.full((1, 4), 8.0), np.full((1, 4), 1024.0), self._rng.uniform(1e5, 2e5, (1, 4))], -1)
            scatter = np.exp(self._rng.normal(0, self._noise, (1, 4)))
            seconds = (1e-4 * work[..., 1] * self.factor * scatter)[..., None]
            self.found += self.level.observe(self._iteration, seconds, work)

    def change(self, moved: str, ratio: float) -> None:
        """The next epoch, in which `moved` takes `ratio` times its old seconds per unit of work."""
        self.factor[NAMES.index(moved)] *= ratio
        self.level = self.level.successor({"s": NAMES}, {"s": ("s", 1.0)}, moved=[moved])

    def told(self) -> list[tuple[str, str | None]]:
        return [(str(v.kind), v.device) for v in self.found]


def test_a_device_with_another_share_is_not_slow_and_its_peers_are_neither() -> None:
    for ratio in (0.55, 1.8):
        played = Played()
        played.go_on(40)
        played.change("r2", ratio)
        played.go_on(60)  # over the warm-up of the new epoch
        assert played.told() == []


def test_after_it_has_settled_a_fault_is_seen() -> None:
    played = Played()
    played.go_on(40)
    played.change("r2", 0.55)
    played.go_on(12)
    played.factor[2] *= 1.5
    played.go_on(5)
    assert played.told() == [("DeviceSlow", "r2")]
    assert abs(played.found[0].p * 1.5 - 1.0) < 0.05


def test_peers_are_watched_meanwhile() -> None:
    played = Played()
    played.go_on(40)
    played.change("r2", 0.55)
    played.factor[0] *= 1.5
    played.go_on(6)
    assert played.told() == [("DeviceSlow", "r0")]


def test_a_slow_device_stays_as_slow_as_it_was_and_recovers() -> None:
    played = Played()
    played.go_on(40)
    played.factor[2] *= 2.0
    played.go_on(10)
    played.change("r2", 1.6)  # the share that is left to it is small, which costs some more
    played.go_on(40)
    assert abs(played.level.scores()["r2"][0] - 0.5) < 0.03
    played.factor[2] /= 2.0
    played.go_on(10)
    assert played.told() == [("DeviceSlow", "r2"), ("DeviceRecovered", "r2")]


def test_a_snapshot_in_between_goes_on_exactly() -> None:
    one, other = Played(), Played()
    for played in (one, other):
        played.go_on(40)
        played.change("r2", 0.55)
        played.go_on(5)
    again = DeviceLevel({"s": NAMES}, CONFIG)
    again.restore(other.level.snapshot())
    other.level = again
    for played in (one, other):
        played.go_on(7)
        played.factor[2] *= 1.5
        played.go_on(6)
    assert one.found == other.found
    assert one.told() == [("DeviceSlow", "r2")]
