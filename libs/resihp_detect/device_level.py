"""Names the slow device: observed against healthy time, against peers, accumulated (design: section 7).

One instance watches all devices of a job, group by group (peers: the devices of one stage). Everything after the
warm-up is array arithmetic over (groups, devices), so that 10,240 devices cost a few milliseconds per iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from resihp_detect import conclude
from resihp_detect.calibrate import Calibration, calibrate, noise_factor
from resihp_detect.config import PeerConfig
from resihp_detect.cusum import Cusum
from resihp_detect.device_memory import DeviceMemory
from resihp_detect.healthy_time import NUM_FEATURES, HealthyTime, usable
from resihp_detect.peers import MEDIAN_JUMP, peer_medians, spread
from resihp_detect.roster import Roster
from resihp_detect.settling import Settling
from resihp_detect.state import pack, unpack
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
        self._cusum = Cusum(shape, self.config)
        self._settling = Settling(shape, self.config.settle)
        self._last = np.full(shape, np.nan)
        self._skip = np.full(shape[0], self.config.skip)
        self._learning: list[list[tuple[Floats, Floats]] | None] = [[] for _ in range(shape[0])]
        self._fits: list[tuple[HealthyTime, ...] | None] = [None] * shape[0]
        self._weights = np.zeros((shape[0], NUM_FEATURES))
        self._offset = np.zeros(shape)
        self._anchor = np.zeros(shape)
        self._level = np.zeros(shape[0])
        self._sigma = np.zeros(shape[0])
        self._memory = np.ones(shape[0])
        self._spread = np.zeros(shape[0])
        self._shift = np.zeros((2, shape[0]))
        self._shift_onset = np.zeros(shape[0], dtype=np.int64)
        self._began = np.zeros(shape[0], dtype=np.int64)
        self._told = np.zeros(shape[0], dtype=np.bool_)
        self._suspected = np.zeros(shape, dtype=np.bool_)

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
        ready = enough & (self._skip <= 0)
        self._skip = np.where(enough, self._skip - 1, self._skip)
        verdicts = list(self._judge(iteration, seconds, work, valid & ready[:, None]))
        for g in np.nonzero(ready)[0]:
            verdicts += self._learn(int(g), iteration, seconds[g], work[g], valid[g])
        return tuple(verdicts)

    def _judge(
        self, iteration: int, seconds: Floats, work: Floats, valid: npt.NDArray[np.bool_]
    ) -> tuple[Verdict, ...]:
        learned = np.array([fit is not None for fit in self._fits])
        valid = valid & learned[:, None]
        if not valid.any():
            return ()
        residual = self._settled(self._residual(seconds, work, valid))
        counts = np.isfinite(residual).sum(axis=1)
        against = residual - self._offset - self._reference(residual)
        few = self._are_few(residual)
        if few.any():  # own healthy time must agree: that a device became slow, and that it recovered
            own = residual - self._offset - self._level[:, None]
            agreed = np.where(self._cusum.slow, np.maximum(against, own), np.minimum(against, own))
            against = np.where(few[:, None], agreed, against)
        factor = self._factors(residual, against, counts)
        slow, recovered = self._cusum.update(iteration, against, factor)
        verdicts = conclude.devices(self, iteration, np.nonzero(slow), np.nonzero(recovered))
        healthy = np.where(self._cusum.slow, np.nan, residual - self._offset)
        level, _, counts = peer_medians(healthy)
        shifted = self._common(iteration, healthy, np.where(counts > 0, level, np.nan), factor)
        self._track(against, level, factor)
        return (*verdicts, *shifted)

    def _settled(self, residual: Floats) -> Floats:
        """Without the devices whose share of the work is new; those that settle now get an offset of their own.

        A device that was slow before is taken to be as slow as it was: slower or faster than that it is by its share.
        """
        is_open = self._settling.open
        if not is_open.any():
            return residual
        known = np.where(is_open, np.nan, residual)
        normal, _, _ = peer_medians(np.where(self._cusum.slow, np.nan, known - self._offset))
        found = self._settling.observe(residual - np.where(np.isfinite(normal), normal, self._level)[:, None])
        for g, d in zip(*np.nonzero(np.isfinite(found)), strict=True):
            slowness = self._cusum.severity(int(g), int(d))[0] if self._cusum.slow[g, d] else 0.0
            self._offset[g, d] = self._anchor[g, d] = found[g, d] - slowness
        return known

    def _reference(self, residual: Floats) -> Floats:
        """What each device is compared with: the median of its peers that are not slow, or if there is none the level
        of the group when it was healthy. So the slow devices of a small group do not hide each other.
        """
        healthy = np.where(self._cusum.slow, np.nan, residual - self._offset)
        group, peers, _ = peer_medians(healthy)
        peers = np.where(self._cusum.slow, group[:, None], peers)
        return np.where(np.isfinite(peers), peers, self._level[:, None])

    def _are_few(self, residual: Floats) -> npt.NDArray[np.bool_]:
        """Groups in which too few healthy devices report to outvote one of them."""
        return np.asarray((np.isfinite(residual) & ~self._cusum.slow).sum(axis=1) < self.config.few_peers)

    def _residual(self, seconds: Floats, work: Floats, valid: npt.NDArray[np.bool_]) -> Floats:
        predicted = np.einsum("gdf,gf->gd", np.where(valid[..., None], work, 0.0), self._weights)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(valid & (predicted > 0), np.log(seconds.sum(-1) / predicted), np.nan)

    def _factors(self, residual: Floats, against: Floats, counts: npt.NDArray[np.int64]) -> Floats:
        """Noise factor of each group: from the warm-up, or from what is seen at present if that is larger: the scatter
        between peers, in a small group how much its devices jump from one iteration to the next.
        """
        c = self.config
        many = counts >= 2 * c.few_peers
        healthy = np.where(self._cusum.slow, np.nan, against)
        jumps, _, _ = peer_medians(np.abs(healthy - self._last))
        self._last = np.where(np.isfinite(healthy), healthy, self._last)
        present = np.where(many, spread(residual - self._offset), jumps / MEDIAN_JUMP)
        seen = np.isfinite(present)
        self._spread += np.where(seen, (np.where(seen, present, 0.0) - self._spread) * 0.1, 0.0)
        sigma = np.maximum(self._sigma, self._spread)
        return np.clip(c.noise_ratio * sigma * self._memory / c.k, 1.0, c.max_noise_factor)

    def _track(self, against: Floats, level: Floats, factor: Floats) -> None:
        """Follow slow drifts of benign devices (within the tolerance) and of the common level."""
        c = self.config
        f = factor[:, None]
        benign = np.isfinite(against) & ~self._cusum.slow & (self._cusum.rise < 0.25 * c.h * f)
        step = np.where(benign, np.clip(against, -c.k * f, c.k * f), 0.0)
        step[self.roster.sizes < c.few_peers] = 0.0  # too few peers to say who drifts
        moved = self._offset + c.tracking * step
        self._offset = np.clip(moved, self._anchor - c.tolerance, self._anchor + c.tolerance)
        quiet = np.isfinite(level) & (self._shift.max(axis=0) < 0.25 * c.h * factor)
        moves = np.clip(np.where(quiet, level - self._level, 0.0), -c.shift_k, c.shift_k)
        self._level = self._level + c.tracking * moves

    def _common(self, iteration: int, healthy: Floats, level: Floats, factor: Floats) -> tuple[Verdict, ...]:
        """Everybody moved: two-sided CUSUM on the level; a group that is over it learns anew.

        The level is the median; in a group too small to outvote one device it is the one that moved least.
        """
        c = self.config
        known = np.isfinite(level) & (self.roster.sizes > 1)
        few = np.isfinite(healthy).sum(axis=1) < c.few_peers
        lowest = np.where(np.isfinite(healthy), healthy, np.inf).min(axis=1)
        highest = np.where(np.isfinite(healthy), healthy, -np.inf).max(axis=1)
        was_zero = self._shift.max(axis=0) <= 0.0
        for sign, row, least in ((1.0, 0, lowest), (-1.0, 1, highest)):
            moved = np.where(known, sign * (np.where(few, least, level) - self._level), 0.0)
            grown = self._shift[row] + np.minimum(moved, c.clip * factor) - c.shift_k * factor
            self._shift[row] = np.where(known, np.maximum(0.0, grown), self._shift[row])
        begins = was_zero & (self._shift.max(axis=0) > 0.0)
        self._shift_onset = np.where(begins, iteration, self._shift_onset)
        over = np.nonzero(self._shift.max(axis=0) > c.h * factor)[0]
        verdicts = []
        for g in over:
            verdicts.append(
                conclude.shift(self, int(g), iteration, int(self._shift_onset[g]), float(level[g] - self._level[g]))
            )
            self.relearn(int(g))
            self._level[g] = level[g]
        return tuple(verdicts)

    # --- learning -------------------------------------------------------------------------------------------------

    def relearn(self, group: int) -> None:
        """Learn the group anew; until that is done its old healthy time, shifted to the new level, goes on judging."""
        self._learning[group] = []
        self._shift[:, group] = 0.0

    def _learn(
        self, g: int, iteration: int, seconds: Floats, work: Floats, valid: npt.NDArray[np.bool_]
    ) -> tuple[Verdict, ...]:
        rows = self._learning[g]
        if rows is None:
            return ()
        slow = self._cusum.slow[g]
        if not rows:
            self._began[g] = iteration
        rows.append((np.where((valid & ~slow)[:, None], seconds, np.nan), np.where(valid[:, None], work, np.nan)))
        if len(rows) < self.config.warmup:
            return ()
        self._learning[g] = None
        size = int(self.roster.sizes[g])
        try:
            found = calibrate(
                np.stack([w for _, w in rows])[:, :size],
                np.stack([s for s, _ in rows])[:, :size],
                self.config,
                self._settling.moved[g, :size],
            )
        except ValueError:  # nothing usable came: try again
            self._learning[g] = []
            return ()
        return self._adopt(g, iteration, found)

    def _adopt(self, g: int, iteration: int, found: Calibration) -> tuple[Verdict, ...]:
        c, size = self.config, len(found.offset)
        again = self._fits[g] is not None
        self._fits[g] = found.fits
        self._weights[g] = np.sum([fit.weights for fit in found.fits], axis=0)
        self._sigma[g], self._memory[g], self._spread[g] = found.sigma, found.memory, found.sigma
        self._level[g] = 0.0
        self._shift[:, g] = 0.0
        slow = self._cusum.slow[g, :size]
        anchor = np.where(found.heterogeneous & (np.abs(found.offset) > c.tolerance), found.offset, 0.0)
        anchor = np.where(self._settling.moved[g, :size], found.offset, anchor)
        anchor = np.where(found.born_slow, 0.0, anchor)
        offset = np.clip(found.offset, anchor - c.tolerance, anchor + c.tolerance)
        offset = np.where(found.born_slow, 0.0, offset)
        self._settling.finish(g)
        self._anchor[g, :size] = np.where(slow, self._anchor[g, :size], anchor)
        self._offset[g, :size] = np.where(slow, self._offset[g, :size], offset)
        self._cusum.forget_evidence(g)
        verdicts: list[Verdict] = []
        born = np.nonzero(found.born_slow & ~slow)[0]
        first = int(self._began[g])
        for d in born:
            self._cusum.declare(g, int(d), first, float(found.offset[d]))
        verdicts += conclude.born(self, g, iteration, first, born, again)
        if found.heterogeneous and not self._told[g]:
            self._told[g] = True
            verdicts.append(conclude.heterogeneity(self, g, iteration, first, found))
        return tuple(verdicts)

    # --- results --------------------------------------------------------------------------------------------------

    @property
    def is_learned(self) -> bool:
        """True once every group can be judged."""
        return all(fit is not None for fit in self._fits)

    @property
    def cusum(self) -> Cusum:
        return self._cusum

    def noise(self, group: int) -> tuple[float, float, float]:
        """Deviation, memory and noise factor of a group."""
        sigma, memory = float(self._sigma[group]), float(self._memory[group])
        return sigma, memory, noise_factor(max(sigma, float(self._spread[group])), memory, self.config)

    def healthy_time(self, group: str) -> tuple[HealthyTime, ...] | None:
        """The frozen fits of a group, one per direction; None before its warm-up is over."""
        return self._fits[self.roster.groups.index(group)]

    def suspicions(self, iteration: int) -> tuple[Verdict, ...]:
        """Devices for whose slowness half of the evidence came together in the last judged iteration, each once per
        rise. Nothing depends on asking."""
        factor = np.array([self.noise(g)[2] for g in range(len(self.roster.groups))])[:, None]
        half = self._cusum.leaning & (self._cusum.rise > 0.5 * self.config.h * factor) & ~self._cusum.slow
        new = half & ~self._suspected
        self._suspected = (self._suspected & (self._cusum.rise > 0.0)) | half
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
        found = {}
        for name, (g, d) in self.roster.places.items():
            slow = bool(self._cusum.slow[g, d])
            level = self._cusum.severity(g, d)[0] if slow else 0.0
            found[name] = DeviceMemory(
                float(self._offset[g, d]),
                float(self._anchor[g, d]),
                int(self._cusum.onset[g, d]) if slow else None,
                level,
            )
        return found

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
        for device in moved:
            new._settling.begin(*new.roster.places[device])
        for name, (old_name, factor) in scale.items():
            if old_name not in self.roster.groups or name not in new.roster.groups:
                raise ValueError(f"no healthy time of {old_name!r} for {name!r}")
            self._pass_on(new, self.roster.groups.index(old_name), new.roster.groups.index(name), factor)
        for device, known in {**(memory or {}), **self.memory()}.items():
            if device in new.roster.places:
                g, d = new.roster.places[device]
                new._offset[g, d], new._anchor[g, d] = known.offset, known.anchor
                if known.slow_since is not None:
                    new._cusum.declare(g, d, known.slow_since, known.level)
        return new

    def _pass_on(self, new: DeviceLevel, o: int, g: int, factor: float) -> None:
        """Group g of `new` goes on where group o is: with its healthy time, or in the middle of learning it."""
        fits, rows = self._fits[o], self._learning[o]
        if fits is not None:
            new._fits[g] = tuple(fit.scaled(factor) for fit in fits)
            new._weights[g] = self._weights[o] * factor
            for array in ("_sigma", "_memory", "_spread", "_level", "_told"):
                getattr(new, array)[g] = getattr(self, array)[o]
        elif rows and factor == 1.0 and not new._settling.moved[g].any():
            column = {name: d for d, name in enumerate(self.roster.devices[self.roster.groups[o]])}
            index = [column.get(name, -1) for name in new.roster.devices[new.roster.groups[g]]]
            new._learning[g] = [(_columns(s, index, new), _columns(w, index, new)) for s, w in rows]
            new._began[g] = self._began[o]

    def snapshot(self) -> dict[str, Any]:
        """Everything that `restore` needs, as values that MessagePack can carry."""
        return {
            "version": 2,
            "groups": {g: list(d) for g, d in self.roster.devices.items()},
            "arrays": {name: pack(getattr(self, name)) for name in _ARRAYS},
            "cusum": self._cusum.snapshot(),
            "settling": self._settling.snapshot(),
            "fits": [None if f is None else [fit.as_dict() for fit in f] for f in self._fits],
            "learning": [None if r is None else [[pack(s), pack(w)] for s, w in r] for r in self._learning],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot of a detector with the same groups. Raises ValueError if it does not fit."""
        groups = {g: tuple(d) for g, d in state["groups"].items()}
        if state["version"] != 2 or groups != dict(self.roster.devices):
            raise ValueError(f"snapshot of version {state['version']} and groups {list(groups)} does not fit")
        arrays = {name: unpack(state["arrays"][name], getattr(self, name)) for name in _ARRAYS}
        d = self.roster.shape[1]
        row = (np.empty((d, self.num_directions)), np.empty((d, NUM_FEATURES)))
        self._learning = [
            None if r is None else [(unpack(s, row[0]), unpack(w, row[1])) for s, w in r] for r in state["learning"]
        ]
        self._fits = [None if f is None else tuple(HealthyTime.from_dict(x) for x in f) for f in state["fits"]]
        self._cusum.restore(state["cusum"])
        self._settling.restore(state["settling"])
        for name, array in arrays.items():
            setattr(self, name, array)


def _columns(old: Floats, index: Sequence[int], new: DeviceLevel) -> Floats:
    """Rows of devices in the order of another roster; NaN for those that were not there."""
    found = np.full((new.roster.shape[1], old.shape[1]), np.nan)
    for d, o in enumerate(index):
        if o >= 0:
            found[d] = old[o]
    return found


_ARRAYS = (
    "_skip",
    "_weights",
    "_offset",
    "_anchor",
    "_level",
    "_sigma",
    "_memory",
    "_spread",
    "_shift",
    "_shift_onset",
    "_began",
    "_told",
    "_suspected",
    "_last",
)
