"""Alarms against what really happened: found, delay, false alarms, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.detection.fleet import Fault

Flags = npt.NDArray[np.bool_]
WITHIN = 20
"""Iterations within which a fault must be named, and its end noticed."""


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    if total == 0:
        return 0.0, 1.0
    share, n = hits / total, float(total)
    centre, width = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, (centre - width) / (1 + z * z / n)), min(1.0, (centre + width) / (1 + z * z / n))


def poisson(events: int, exposure: float) -> tuple[float, float]:
    """95 % interval of a rate per unit of exposure (chi-squared quantiles by Wilson and Hilferty)."""

    def quantile(k: float, z: float) -> float:
        return k * (1 - 1 / (9 * k) + z / (3 * math.sqrt(k))) ** 3 if k > 0 else 0.0

    return quantile(events, -1.96) / exposure, quantile(events + 1, 1.96) / exposure


@dataclass
class Score:
    """Of one method on one stream. Feed it the flags after each iteration."""

    faults: Sequence[Fault]
    """Those that are scored."""
    excused: Sequence[Fault]
    """Those whose devices may be flagged: all faults of the stream."""
    start: int
    """First judged iteration."""
    device_iterations: int = 0
    false_alarms: int = 0
    delays: list[int] = field(default_factory=list)
    """Faulty iterations seen until a fault was named, the naming one included."""
    named_alone: int = 0
    """Faults named while no other device of the group was accused wrongly."""
    recovered: int = 0
    _before: Flags | None = None
    _at: dict[int, list[int]] = field(default_factory=dict)
    _excused_at: dict[int, list[Fault]] = field(default_factory=dict)
    _found: dict[int, int] = field(default_factory=dict)
    _disturbed: set[int] = field(default_factory=set)
    _cleared: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for n, f in enumerate(self.faults):
            for i in range(f.start, f.stop + WITHIN):
                self._at.setdefault(i, []).append(n)
        for f in self.excused:
            for i in range(f.start, f.stop + WITHIN):
                self._excused_at.setdefault(i, []).append(f)

    def see(self, i: int, slow: Flags) -> None:
        """Flags (groups, devices) after iteration i."""
        before = np.zeros_like(slow) if self._before is None else self._before
        self._before = slow.copy()
        if i < self.start:
            return
        # a device is excused while it is slow and for the iterations in which its end must be noticed
        excused = np.zeros_like(slow)
        for f in self._excused_at.get(i, []):
            excused[f.group, f.device] = True
        fresh = slow & ~before & ~excused
        self.false_alarms += int(fresh.sum())
        self.device_iterations += int((~excused).sum())
        wrong = set(np.nonzero(fresh)[0].tolist())
        for n in self._at.get(i, []):
            f = self.faults[n]
            flagged = bool(slow[f.group, f.device])
            if i < f.stop:
                if flagged and i < f.start + WITHIN:
                    self._found.setdefault(n, i - f.start + 1)
                if f.group in wrong:
                    self._disturbed.add(n)
            elif n in self._found and not flagged:
                self._cleared.add(n)

    def finish(self) -> None:
        """The stream is over."""
        self.delays = sorted(self._found.values())
        self.named_alone = sum(n not in self._disturbed for n in self._found)
        self.recovered = len(self._cleared)

    @property
    def found(self) -> int:
        return len(self._found)

    def delay(self, q: float) -> str:
        """Quantile of the delay over all faults; missed ones count as infinite."""
        k = math.ceil(q * len(self.faults)) - 1
        return str(self.delays[k]) if 0 <= k < len(self.delays) else "-"


def share(hits: int, total: int) -> str:
    """Percent with its interval."""
    low, high = wilson(hits, total)
    return f"{100 * hits / total:.2f} [{100 * low:.2f}, {100 * high:.2f}]" if total else "-"


def rate(events: int, exposure: int) -> str:
    """Per 1,000 device-iterations, with its interval."""
    low, high = poisson(events, exposure / 1000)
    return f"{events / exposure * 1000:.4f} [{low:.4f}, {high:.4f}]"
