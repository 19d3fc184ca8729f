"""Pictures of simulated lives: throughput over time and goodput, by matplotlib (extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resihp_cli.errors import CliError

DAY = 86_400.0


@dataclass(frozen=True)
class Curve:
    """A policy's run."""

    name: str
    segments: Sequence[tuple[float, float, float]]
    """(start, stop) in seconds and throughput relative to the healthy job."""

    @property
    def without_pauses(self) -> Sequence[tuple[float, float, float]]:
        """Pauses too short to be seen would be a thicket of vertical lines."""
        whole = self.segments[-1][1] - self.segments[0][0]
        return [each for each in self.segments if each[2] > 0 or each[1] - each[0] > whole / 100]

    @property
    def goodput(self) -> float:
        """Mean throughput."""
        whole = self.segments[-1][1] - self.segments[0][0]
        return sum((stop - start) * height for start, stop, height in self.segments) / whole


def draw(path: Path, curves: Sequence[Curve], title: str) -> None:
    """Write a picture; its kind follows the file's name. Raises `CliError` without matplotlib, or if it cannot be
    written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CliError("pictures need matplotlib: pip install 'resihp[plot]'") from error
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    over_time, bars = figure.subplots(2, 1, height_ratios=(2, 1))
    for curve in curves:
        shown = curve.without_pauses
        days = [t / DAY for start, stop, _ in shown for t in (start, stop)]
        heights = [height for _, _, height in shown for _ in range(2)]
        over_time.plot(days, heights, label=curve.name, linewidth=1.2)
    lowest = min([h for curve in curves for _, _, h in curve.segments if h > 0], default=0.0)
    bottom = lowest - 0.05 if lowest > 0.3 else 0.0  # who stands still is seen below
    over_time.set(ylabel="throughput / healthy (without short pauses)", xlabel="days", ylim=(bottom, 1.05), title=title)
    over_time.legend(loc="lower left", ncols=3, fontsize="small")
    names, goodputs = [c.name for c in curves], [c.goodput for c in curves]
    labels = bars.barh(names, goodputs, color=[f"C{i}" for i in range(len(curves))])
    bars.bar_label(labels, fmt="{:.1%}", padding=3, fontsize="small")
    bars.set(xlabel="goodput / healthy", xlim=(0, 1.1))
    bars.invert_yaxis()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise CliError(f"--picture {path}: {error}") from error
