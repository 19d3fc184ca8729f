"""`resihp replay FILE`: the detector on a recorded run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from resihp_cli.errors import CliError
from resihp_cli.traces import Trace, read_trace
from resihp_cli.view.verdicts import verdict_line
from resihp_detect import Assembly, DeviceLevel, PeerConfig, Verdict


@dataclass(frozen=True)
class Replayed:
    """A trace and what detection says about it."""

    trace: Trace
    level: DeviceLevel
    verdicts: tuple[Verdict, ...]
    num_missing: int
    num_repeated: int


def replay(path: Path, *, warmup: int | None = None) -> Replayed:
    """Run the detector over a file. Raises `CliError` if the file is unreadable or too short to learn from."""
    trace = read_trace(path)
    default = PeerConfig()
    config = default if warmup is None else PeerConfig(warmup=warmup)
    needed = config.skip + config.warmup
    if len(trace.iterations) <= needed:
        raise CliError(
            f"{path}: {len(trace.iterations)} iterations; {needed} are needed to learn what is healthy (--warmup), "
            "more to judge"
        )
    level = DeviceLevel(trace.groups, config, num_directions=trace.num_directions)
    assembly = Assembly(level.roster, num_directions=trace.num_directions)
    verdicts: list[Verdict] = []
    missing = 0
    frames = [f for record in trace.records for f in assembly.add(record)]
    for frame in (*frames, *assembly.flush()):
        missing += frame.num_missing
        verdicts += level.observe(frame.iteration, frame.seconds, frame.work)
    return Replayed(trace, level, tuple(verdicts), missing, assembly.num_repeated)


def run_replay(path: Path, *, as_json: bool, plot: Path | None, warmup: int | None) -> int:
    """Prints verdicts with their evidence; exit code 0 whatever they are."""
    if plot is not None and not plot.absolute().parent.is_dir():
        raise CliError(f"--plot {plot}: folder {plot.absolute().parent} does not exist")
    found = replay(path, warmup=warmup)
    if plot is not None:
        from resihp_cli.view.trace_plot import draw

        draw(found.trace, found.level.config, found.verdicts, plot)
    if as_json:
        print(json.dumps(_document(path, found), indent=2))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    trace = found.trace
    steps = trace.iterations
    console.print(
        f"{path}: {trace.layout}, {len(steps)} iterations ({steps[0]} to {steps[-1]}), "
        f"{sum(map(len, trace.groups.values()))} devices in {len(trace.groups)} groups"
    )
    for verdict in found.verdicts:
        console.print(verdict_line(verdict))
        console.print("    " + ", ".join(f"{k} = {v}" for k, v in verdict.evidence.items()))
    if not found.verdicts:
        console.print("nobody was slow: differences between devices stay within the noise of their healthy times")
    for g, name in enumerate(trace.groups):
        sigma, memory, factor = found.level.noise(g)
        smallest = factor * 2 * found.level.config.k
        console.print(
            f"{name}: noise {100 * sigma:.1f} %, memory {memory:.2f}; "
            f"persistent slowdowns above {100 * smallest:.0f} % are sure to show"
        )
    return 0


def _document(path: Path, found: Replayed) -> dict[str, Any]:
    steps = found.trace.iterations
    return {
        "file": str(path),
        "layout": found.trace.layout,
        "iterations": {"count": len(steps), "first": steps[0], "last": steps[-1]},
        "groups": found.trace.groups,
        "noise": {g: round(found.level.noise(i)[0], 4) for i, g in enumerate(found.trace.groups)},
        "missing": found.num_missing,
        "invalid": found.trace.num_invalid,
        "slow_at_end": {d: round(p, 4) for d, (p, _) in found.level.scores().items() if p < 1.0},
        "verdicts": [v.as_dict() for v in found.verdicts],
    }
