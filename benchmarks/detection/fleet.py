"""Generated fleets: 256 devices (DP 8 x PP 4 x TP 8) per seed, with everything that makes healthy iterations differ.

Time of a micro-batch: stage factor x (fixed + a tokens + b sum l^2); backward takes twice as long. Noise 3 % per
micro-batch and 2 % per device and iteration, hiccups (one iteration in 200 takes 30 to 100 % longer), a common drift
of 2 %, offsets of devices of 1.5 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FIXED_S, PER_TOKEN_S, PER_SQUARE_S = 4e-3, 1.2e-6, 7e-11
"""A 7B-like stage (evidence of the project's regression study)."""


@dataclass(frozen=True)
class Shape:
    """Of one job, and its noise."""

    dp: int = 8
    pp: int = 4
    tp: int = 8
    num_micro_batches: int = 8
    micro_batch_noise: float = 0.03
    device_noise: float = 0.02
    hiccup_rate: float = 0.005
    drift: float = 0.02
    offset: float = 0.015

    @property
    def num_peers(self) -> int:
        return self.dp * self.tp


@dataclass(frozen=True)
class Fault:
    """A device (group, index) takes `slowdown` times as long in iterations start <= i < stop."""

    group: int
    device: int
    start: int
    stop: int
    slowdown: float


class Fleet:
    """Many jobs at once: groups = seeds x stages, devices = DP x TP."""

    def __init__(self, shape: Shape, num_seeds: int, pool: Floats, rng: np.random.Generator) -> None:
        self.shape, self.num_seeds, self._pool, self._rng = shape, num_seeds, pool, rng
        self.num_groups = num_seeds * shape.pp
        self._stage = np.tile(rng.uniform(0.97, 1.1, shape.pp), num_seeds)[:, None]
        self._offset = np.exp(rng.normal(0.0, shape.offset, (self.num_groups, shape.num_peers)))
        self._phase = rng.uniform(0, 2 * np.pi, self.num_groups)
        self.groups = {f"{g}": [f"{g}.{d}" for d in range(shape.num_peers)] for g in range(self.num_groups)}

    def iteration(self, i: int, faults: list[Fault]) -> tuple[Floats, Floats]:
        """Seconds (groups, devices, 2) and work (groups, devices, 3) of iteration i."""
        s, rng = self.shape, self._rng
        drawn = self._pool[rng.integers(0, len(self._pool), (self.num_seeds, s.dp, s.num_micro_batches))]
        healthy = drawn @ np.array([FIXED_S, PER_TOKEN_S, PER_SQUARE_S])
        # the stages of a replica, and the members of its TP groups, see the same micro-batches
        per_device = np.repeat(np.repeat(healthy, s.pp, axis=0).reshape(self.num_groups, s.dp, -1), s.tp, axis=1)
        noise = rng.standard_normal((2, *per_device.shape), dtype=np.float32) * s.micro_batch_noise
        each = np.exp(noise) * per_device
        seconds = each.sum(-1) * np.array([1.0, 2.0])[:, None, None]
        factor = self._stage * self._offset * np.exp(rng.normal(0, s.device_noise, self._offset.shape))
        factor *= (1.0 + s.drift * np.sin(i / 60.0 + self._phase))[:, None]
        hiccup = rng.random(factor.shape) < s.hiccup_rate
        factor = np.where(hiccup, factor * rng.uniform(1.3, 2.0, factor.shape), factor)
        for fault in faults:
            if fault.start <= i < fault.stop:
                factor[fault.group, fault.device] *= fault.slowdown
        work = np.repeat(np.repeat(drawn.sum(2), s.pp, axis=0).reshape(self.num_groups, s.dp, 3), s.tp, axis=1)
        return np.moveaxis(seconds * factor, 0, -1), work
