"""`python -m benchmarks.planner.pictures`: the trace's lives as a picture for the documents (extra `plot`)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.planner.__main__ import STORE
from benchmarks.planner.cells import Cells
from benchmarks.planner.trace import DAYS, START_DAY, lives
from resihp_cli.view.picture import Curve, draw

IMAGES = Path("docs/images")
SERVERS = 128


def main() -> None:
    """Of the policies that are complete."""
    known = Cells(STORE / "cells.jsonl", 0.0).known
    curves = [
        Curve(str(policy), [(a, b, c) for a, b, c in life["segments"]])
        for policy, life in lives(known, SERVERS).items()
    ]
    title = f"{8 * SERVERS} devices, days {START_DAY} to {START_DAY + DAYS} of the InfiniteHBD trace (simulated)"
    draw(IMAGES / "planner-trace.svg", curves, title)
    print(IMAGES / "planner-trace.svg", [c.name for c in curves])


if __name__ == "__main__":
    main()
