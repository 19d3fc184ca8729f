"""A picture of a replay: each device relative to its peers, verdicts marked. Needs matplotlib, if it is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from resihp_cli.errors import CliError
from resihp_cli.traces import Trace
from resihp_detect import PeerConfig, Verdict, VerdictKind
from resihp_detect.peers import peer_medians

_MARKS = {
    VerdictKind.DEVICE_SLOW: ("tab:red", "v"),
    VerdictKind.DEVICE_RECOVERED: ("tab:green", "^"),
    VerdictKind.WORKLOAD_SHIFT: ("tab:blue", "s"),
    VerdictKind.HETEROGENEITY: ("tab:purple", "D"),
}


def draw(trace: Trace, config: PeerConfig, verdicts: Sequence[Verdict], path: Path) -> None:
    """Write a PNG (or what the suffix asks for). Raises `CliError` without matplotlib or for an unknown suffix."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CliError("--plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(11, 2.6 * len(trace.groups) + 0.8), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(trace.groups), 1, sharex=True))
    accused = {v.device for v in verdicts if v.device is not None}
    steps = trace.iterations
    row = {i: n for n, i in enumerate(steps)}
    for axis, (group, devices) in zip(axes, trace.groups.items(), strict=True):
        column = {d: n for n, d in enumerate(devices)}
        seconds = np.full((len(steps), len(devices)), np.nan)
        for record in trace.records:
            if record.device in column:
                seconds[row[record.iteration], column[record.device]] = sum(record.seconds)
        middle = peer_medians(seconds)[0][:, None]
        relative = seconds / middle
        for device, n in column.items():
            loud = device in accused
            axis.plot(
                steps, relative[:, n], lw=1.4 if loud else 0.5, color="tab:red" if loud else "0.6", zorder=1 + loud
            )
        for v in verdicts:
            if v.group == group and v.kind in _MARKS:
                colour, marker = _MARKS[v.kind]
                axis.axvline(v.iteration, color=colour, lw=0.6, alpha=0.6)
                axis.plot(
                    [v.iteration],
                    [1.0],
                    marker,
                    color=colour,
                    label=f"{v.kind} {v.device or ''} @ {v.iteration}",
                    zorder=3,
                )
        axis.axvspan(steps[0], steps[config.skip + config.warmup - 1], color="0.92", zorder=0, label="learned from")
        axis.set_ylabel(f"{group}: time / peers")
        axis.legend(loc="upper right", fontsize="small")
    axes[-1].set_xlabel("iteration")
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise CliError(f"--plot {path}: {error}") from None
