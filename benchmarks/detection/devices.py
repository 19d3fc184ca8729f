"""Device level: generated fleets with faults; ours and the baselines see the same iterations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.detection.baselines import ChangePoint, Flags, Floats, Method, RawMedian, RelativeScore, TwiceMedian
from benchmarks.detection.fleet import Fault, Fleet, Shape
from benchmarks.detection.score import WITHIN, Score
from resihp_detect import DeviceLevel, VerdictKind

START = 25
"""First iteration after everybody's warm-up."""
ROUND = 60


class Ours:
    """The product class itself, as the detector service calls it."""

    name = "ResiHP"

    def __init__(self, fleet: Fleet) -> None:
        self.level = DeviceLevel(fleet.groups, num_directions=2)
        self.other = 0
        """Workload shifts and heterogeneity, of which the streams have none."""

    def step(self, i: int, seconds: Floats, work: Floats) -> Flags:
        found = self.level.observe(i, seconds, work)
        quiet = (VerdictKind.WORKLOAD_SHIFT, VerdictKind.HETEROGENEITY)
        self.other += sum(v.kind in quiet for v in found)
        return self.level.cusum.slow


@dataclass
class Cell:
    """Scores of one kind of work: method -> slowdown -> score; false alarms over the whole stream."""

    work: str
    scores: dict[str, dict[float, Score]] = field(default_factory=dict)
    severity_errors: dict[float, list[float]] = field(default_factory=dict)
    other: int = 0


def schedule(fleet: Fleet, slowdowns: tuple[float, ...], rounds: int, rng: np.random.Generator) -> list[Fault]:
    """In each round of 60 iterations one device per group and slowdown is slow for 30, then has time to recover."""
    faults = []
    for r in range(rounds):
        for g in range(fleet.num_groups):
            devices = rng.choice(fleet.shape.num_peers, len(slowdowns), replace=False)
            for d, slowdown in zip(devices, slowdowns, strict=True):
                first = START + ROUND * r + int(rng.integers(0, 8))
                faults.append(Fault(g, int(d), first, first + 30, slowdown))
    return faults


def run_cell(
    work: str,
    pool: npt.NDArray[np.float64],
    slowdowns: tuple[float, ...],
    *,
    seeds: int,
    rounds: int,
    baseline_seeds: int,
    rng: np.random.Generator,
) -> Cell:
    """One stream. Baselines see the first `baseline_seeds` jobs of it (they are slower and need fewer faults)."""
    fleet = Fleet(Shape(), seeds, pool, rng)
    faults = schedule(fleet, slowdowns, rounds, rng)
    ours = Ours(fleet)
    few = baseline_seeds * fleet.shape.pp
    others: list[Method] = [
        RawMedian(1.1), RawMedian(1.2), RawMedian(1.5), ChangePoint(0.1), RelativeScore(), TwiceMedian(),
    ]  # fmt: skip
    cell = Cell(work, severity_errors={s: [] for s in slowdowns})
    for method in [ours, *others] if few else [ours]:
        seen = [f for f in faults if method is ours or f.group < few]
        # each slowdown has a score of its own; faults of other slowdowns are excused in all of them
        cell.scores[method.name] = {s: Score([f for f in seen if f.slowdown == s], seen, START) for s in slowdowns}
    aged: dict[int, list[Fault]] = {}
    for f in faults:
        aged.setdefault(f.start + WITHIN - 1, []).append(f)
    for i, seconds, done in _stream(fleet, faults, START + ROUND * rounds):
        flags = ours.step(i, seconds, done)
        _see(cell.scores[ours.name], i, flags)
        for f in aged.get(i, []):
            if flags[f.group, f.device]:
                level, _ = ours.level.cusum.severity(f.group, f.device)
                cell.severity_errors[f.slowdown].append(abs(math.exp(-level) * f.slowdown - 1.0))
        for method in others if few else []:
            _see(cell.scores[method.name], i, method.step(i, seconds[:few], done[:few]))
    for scores in cell.scores.values():
        for score in scores.values():
            score.finish()
    cell.other = ours.other
    return cell


def _stream(fleet: Fleet, faults: list[Fault], stop: int) -> Iterator[tuple[int, Floats, Floats]]:
    ordered = sorted(faults, key=lambda f: f.start)
    for i in range(1, stop):
        active = [f for f in ordered if f.start <= i < f.stop]
        yield (i, *fleet.iteration(i, active))


def _see(scores: dict[float, Score], i: int, flags: Flags) -> None:
    for score in scores.values():
        score.see(i, flags)
