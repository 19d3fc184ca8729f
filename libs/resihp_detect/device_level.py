"""Names the slow device: observed against healthy time, against peers, accumulated (design: section 7).

One instance watches all devices of a job, group by group (peers: the devices of one stage). Everything after the
warm-up is array arithmetic over (groups, devices), so that 10,240 devices cost a few milliseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect import conclude, succession
from resihp_detect.calibrate import Calibration, calibrate, noise_factor
from resihp_detect.common_mode import CommonMode
from resihp_detect.config import PeerConfig
from resihp_detect.cusum import Cusum
from resihp_detect.device_memory import DeviceMemory
from resihp_detect.healthy_time import NUM_FEATURES, HealthyTime, usable
from resihp_detect.learning import Learning
from resihp_detect.normal import Normal
from resihp_detect.peers import MEDIAN_JUMP, peer_medians, spread
from resihp_detect.roster import Roster
from resihp_detect.settling import Settling
from resihp_detect.verdict import Verdict

Floats = npt.NDArray[np.float64]


class DeviceLevel:
    """Detector of slow devices by comparison with their peers.

    `groups`: name -> devices that do the same work on the same kind of hardware. Not thread-safe; no clock, no
    randomness.

    >>> rng = np.random.default_rng(0)
    >>> names = [f"r{i}" for i in range(8)]
    >>> detector = DeviceLevel({"stage 0": names})
    >>> found = []
    >>> for iteration in range(1, 101):
    ...     work = rng.uniform(0.5, 1.5, (1, 8, 1)) * np.array([0.0, 65536.0, 1e9])  # every device has other lengths
    ...     seconds = work[..., 2:] * 1e-9 * np.exp(rng.normal(0, 0.02, (1, 8, 1)))
    ...     seconds[0, 5] *= 1.25 if 60 <= iteration < 80 else 1.0
    ...     found += detector.observe(iteration, seconds, work)
    >>> [(str(v.kind), v.device, v.first_iteration, v.iteration) for v in found]
    [('DeviceSlow', 'r5', 60, 62), ('DeviceRecovered', 'r5', 80, 82)]
    """

    def __init__(
        self, groups: Mapping[str, Sequence[str]], config: PeerConfig | None = None, *, num_directions: int = 1
    ) -> None:
        self.config = config or PeerConfig()
        self.roster = Roster.of(groups)
        self.num_directions = num_directions
        shape = self.roster.shape
        self.normal = Normal(shape)
        self.learning = Learning(self.roster, num_directions)
        self.common = CommonMode(shape[0], self.config)
        self.cusum = Cusum(shape, self.config)
        self.settling = Settling(shape, self.config.settle)
        self.skip = np.full(shape[0], self.config.skip)
        """Iterations of each group that are still to be ignored."""
        self.last = np.full(shape, np.nan)
        """Newest healthy residual of each device."""
        self.told = np.zeros(shape[0], dtype=np.bool_)
        """Groups whose heterogeneity was reported."""
        self.suspected = np.zeros(shape, dtype=np.bool_)

    # --- observing ------------------------------------------------------------------------------------------------

    def observe(self, iteration: int, seconds: Floats, work: Floats, *, benign: bool = False) -> tuple[Verdict, ...]:
        """Judge one iteration, in order of iterations.

        `seconds`: (groups, devices, directions), compute only; `work`: (groups, devices, features). NaN, infinite or
        non-positive values count as missing, in any direction for the whole device. `benign`: an announced phase
        (evaluation, checkpoint) that is not judged. Raises ValueError for other shapes.
        """
        shape = self.roster.shape
        if seconds.shape != (*shape, self.num_directions) or work.shape != (*shape, NUM_FEATURES):
            raise ValueError(
                f"expected seconds {(*shape, self.num_directions)} and work {(*shape, NUM_FEATURES)}, "
                f"got {seconds.shape} and {work.shape}"
            )
        if benign:
            return ()
        valid = usable(work[:, :, None, :], seconds).all(-1) & self.roster.present
        counts = valid.sum(axis=1)
        enough = counts >= np.maximum(np.minimum(2, self.roster.sizes), self.config.quorum * self.roster.sizes)
        ready = enough & (self.skip <= 0)
        self.skip = np.where(enough, self.skip - 1, self.skip)
        verdicts = list(self._judge(iteration, seconds, work, valid & ready[:, None]))
        for g in np.nonzero(ready)[0]:
            verdicts += self._learn(int(g), iteration, seconds[g], work[g], valid[g])
        return tuple(verdicts)

    def _judge(
        self, iteration: int, seconds: Floats, work: Floats, valid: npt.NDArray[np.bool_]
    ) -> tuple[Verdict, ...]:
        valid = valid & self.normal.is_learned[:, None]
        if not valid.any():
            return ()
        residual = self._settled(self.normal.residual(seconds, work, valid))
        counts = np.isfinite(residual).sum(axis=1)
        against = residual - self.normal.offset - self._reference(residual)
        few = self._are_few(residual)
        if few.any():  # own healthy time must agree: that a device became slow, and that it recovered
            own = residual - self.normal.offset - self.normal.level[:, None]
            agreed = np.where(self.cusum.slow, np.maximum(against, own), np.minimum(against, own))
            against = np.where(few[:, None], agreed, against)
        factor = self._factors(residual, against, counts)
        slow, recovered = self.cusum.update(iteration, against, factor)
        verdicts = conclude.devices(self, iteration, np.nonzero(slow), np.nonzero(recovered))
        healthy = np.where(self.cusum.slow, np.nan, residual - self.normal.offset)
        level, _, counts = peer_medians(healthy)
        shifted = self._common(iteration, healthy, np.where(counts > 0, level, np.nan), factor)
        self._track(against, level, factor)
        return (*verdicts, *shifted)

    def _settled(self, residual: Floats) -> Floats:
        """Without the devices whose share of the work is new; those that settle now get an offset of their own.

        A device that was slow before is taken to be as slow as it was: slower or faster than that it is by its share.
        """
        is_open = self.settling.open
        if not is_open.any():
            return residual
        known = np.where(is_open, np.nan, residual)
        normal, _, _ = peer_medians(np.where(self.cusum.slow, np.nan, known - self.normal.offset))
        found = self.settling.observe(residual - np.where(np.isfinite(normal), normal, self.normal.level)[:, None])
        for g, d in zip(*np.nonzero(np.isfinite(found)), strict=True):
            slowness = self.cusum.severity(int(g), int(d))[0] if self.cusum.slow[g, d] else 0.0
            self.normal.offset[g, d] = self.normal.anchor[g, d] = found[g, d] - slowness
        return known

    def _reference(self, residual: Floats) -> Floats:
        """What each device is compared with: the median of its peers that are not slow, or if there is none the level
        of the group when it was healthy. So the slow devices of a small group do not hide each other.
        """
        healthy = np.where(self.cusum.slow, np.nan, residual - self.normal.offset)
        group, peers, _ = peer_medians(healthy)
        peers = np.where(self.cusum.slow, group[:, None], peers)
        return np.where(np.isfinite(peers), peers, self.normal.level[:, None])

    def _are_few(self, residual: Floats) -> npt.NDArray[np.bool_]:
        """Groups in which too few healthy devices report to outvote one of them."""
        return np.asarray((np.isfinite(residual) & ~self.cusum.slow).sum(axis=1) < self.config.few_peers)

    def _factors(self, residual: Floats, against: Floats, counts: npt.NDArray[np.int64]) -> Floats:
        """Noise factor of each group: from the warm-up, or from what is seen at present if that is larger: the scatter
        between peers, in a small group how much its devices jump from one iteration to the next.
        """
        c = self.config
        many = counts >= 2 * c.few_peers
        healthy = np.where(self.cusum.slow, np.nan, against)
        jumps, _, _ = peer_medians(np.abs(healthy - self.last))
        self.last = np.where(np.isfinite(healthy), healthy, self.last)
        present = np.where(many, spread(residual - self.normal.offset), jumps / MEDIAN_JUMP)
        seen = np.isfinite(present)
        self.normal.spread += np.where(seen, (np.where(seen, present, 0.0) - self.normal.spread) * 0.1, 0.0)
        sigma = np.maximum(self.normal.sigma, self.normal.spread)
        return np.clip(c.noise_ratio * sigma * self.normal.memory / c.k, 1.0, c.max_noise_factor)

    def _track(self, against: Floats, level: Floats, factor: Floats) -> None:
        """Follow slow drifts of benign devices (within the tolerance) and of the common level."""
        c = self.config
        f = factor[:, None]
        benign = np.isfinite(against) & ~self.cusum.slow & (self.cusum.rise < 0.25 * c.h * f)
        step = np.where(benign, np.clip(against, -c.k * f, c.k * f), 0.0)
        step[self.roster.sizes < c.few_peers] = 0.0  # too few peers to say who drifts
        moved = self.normal.offset + c.tracking * step
        self.normal.offset = np.clip(moved, self.normal.anchor - c.tolerance, self.normal.anchor + c.tolerance)
        quiet = np.isfinite(level) & self.common.is_quiet(factor)
        moves = np.clip(np.where(quiet, level - self.normal.level, 0.0), -c.shift_k, c.shift_k)
        self.normal.level = self.normal.level + c.tracking * moves

    def _common(self, iteration: int, healthy: Floats, level: Floats, factor: Floats) -> tuple[Verdict, ...]:
        """A group that moved as a whole learns anew, from its new level."""
        normal = self.normal.level
        verdicts = []
        for g in map(int, self.common.observe(iteration, healthy, level, normal, factor, self.roster.sizes)):
            moved = float(level[g] - normal[g])
            verdicts.append(conclude.shift(self, g, iteration, int(self.common.onset[g]), moved))
            self.relearn(g)
            normal[g] = level[g]
        return tuple(verdicts)

    # --- learning -------------------------------------------------------------------------------------------------

    def relearn(self, group: int) -> None:
        """Learn the group anew; until that is done its old healthy time, shifted to the new level, goes on judging."""
        self.learning.begin(group)
        self.common.forget(group)

    def _learn(
        self, g: int, iteration: int, seconds: Floats, work: Floats, valid: npt.NDArray[np.bool_]
    ) -> tuple[Verdict, ...]:
        if not self.learning.is_open(g):
            return ()
        benign_s = np.where((valid & ~self.cusum.slow[g])[:, None], seconds, np.nan)
        rows = self.learning.add(g, iteration, benign_s, np.where(valid[:, None], work, np.nan), self.config.warmup)
        if rows is None:
            return ()
        size = int(self.roster.sizes[g])
        try:
            found = calibrate(
                np.stack([w for _, w in rows])[:, :size],
                np.stack([s for s, _ in rows])[:, :size],
                self.config,
                self.settling.moved[g, :size],
            )
        except ValueError:  # nothing usable came: try again
            self.learning.begin(g)
            return ()
        return self._adopt(g, iteration, found)

    def _adopt(self, g: int, iteration: int, found: Calibration) -> tuple[Verdict, ...]:
        c, size = self.config, len(found.offset)
        normal, again = self.normal, self.normal.fits[g] is not None
        normal.learned(g, found.fits, found.sigma, found.memory)
        self.common.forget(g)
        slow = self.cusum.slow[g, :size]
        anchor = np.where(found.heterogeneous & (np.abs(found.offset) > c.tolerance), found.offset, 0.0)
        anchor = np.where(self.settling.moved[g, :size], found.offset, anchor)
        anchor = np.where(found.born_slow, 0.0, anchor)
        offset = np.clip(found.offset, anchor - c.tolerance, anchor + c.tolerance)
        offset = np.where(found.born_slow, 0.0, offset)
        self.settling.finish(g)
        normal.anchor[g, :size] = np.where(slow, normal.anchor[g, :size], anchor)
        normal.offset[g, :size] = np.where(slow, normal.offset[g, :size], offset)
        self.cusum.forget_evidence(g)
        verdicts: list[Verdict] = []
        born = np.nonzero(found.born_slow & ~slow)[0]
        first = int(self.learning.began[g])
        for d in born:
            self.cusum.declare(g, int(d), first, float(found.offset[d]))
        verdicts += conclude.born(self, g, iteration, first, born, again)
        if found.heterogeneous and not self.told[g]:
            self.told[g] = True
            verdicts.append(conclude.heterogeneity(self, g, iteration, first, found))
        return tuple(verdicts)

    # --- results --------------------------------------------------------------------------------------------------

    @property
    def is_learned(self) -> bool:
        """True once every group can be judged."""
        return bool(self.normal.is_learned.all())

    def noise(self, group: int) -> tuple[float, float, float]:
        """Deviation, memory and noise factor of a group."""
        sigma, memory = float(self.normal.sigma[group]), float(self.normal.memory[group])
        return sigma, memory, noise_factor(max(sigma, float(self.normal.spread[group])), memory, self.config)

    def healthy_time(self, group: str) -> tuple[HealthyTime, ...] | None:
        """The frozen fits of a group, one per direction; None before its warm-up is over."""
        return self.normal.fits[self.roster.groups.index(group)]

    def suspicions(self, iteration: int) -> tuple[Verdict, ...]:
        """Devices for whose slowness half of the evidence came together in the last judged iteration, each once per
        rise. Nothing depends on asking."""
        factor = np.array([self.noise(g)[2] for g in range(len(self.roster.groups))])[:, None]
        half = self.cusum.leaning & (self.cusum.rise > 0.5 * self.config.h * factor) & ~self.cusum.slow
        new = half & ~self.suspected
        self.suspected = (self.suspected & (self.cusum.rise > 0.0)) | half
        return conclude.suspicions(self, iteration, np.nonzero(new))

    def slow(self) -> dict[str, tuple[float, float, float, float]]:
        """Slow device -> p, its 95 % interval, and the confidence that it is slow."""
        return conclude.slow_devices(self)

    def scores(self) -> dict[str, tuple[float, float]]:
        """Device -> (p, confidence that it is slow), for every device of the roster."""
        return conclude.scores(self)

    # --- other epochs, restarts -----------------------------------------------------------------------------------

    def memory(self) -> dict[str, DeviceMemory]:
        """What is known about every device, for a later epoch."""
        return succession.memory(self)

    def successor(
        self,
        groups: Mapping[str, Sequence[str]],
        scale: Mapping[str, tuple[str, float]],
        *,
        memory: Mapping[str, DeviceMemory] | None = None,
        moved: Collection[str] = (),
    ) -> DeviceLevel:
        """The detector of the next epoch. `scale`: new group -> (old group whose healthy time carries over, factor of
        work). `memory`: of devices that this one does not know, as they were in an earlier epoch. `moved`: devices
        whose share of a layer is new, which have to settle (`PeerConfig.settle`).

        Devices keep their offsets and their slowness; groups in `scale` are judged at once and learned anew meanwhile,
        or go on learning. Raises ValueError for an unknown old group.
        """
        new = DeviceLevel(groups, self.config, num_directions=self.num_directions)
        succession.inherit(new, self, scale, memory or {}, moved)
        return new

    def snapshot(self) -> dict[str, Any]:
        """Everything that `restore` needs, as values that MessagePack can carry."""
        return succession.snapshot(self)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot of a detector with the same groups. Raises ValueError if it does not fit."""
        succession.restore(self, state)
