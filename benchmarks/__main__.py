"""All measurements, one after the other: `python -m benchmarks` (nothing else should run on the machine)."""

from __future__ import annotations

import argparse
import asyncio

from benchmarks import adaptation, control_plane_loss, loss_curve, many_changes, plan_changes, recovery, simulate
from benchmarks.engine_recovery import __main__ as engine_recovery
from benchmarks.overhead import __main__ as overhead
from benchmarks.reference import __main__ as reference


async def whole_system(runs: int, changes: int, window: int) -> None:
    """Through the services."""
    await recovery.main(runs)
    await plan_changes.main(changes)
    await control_plane_loss.main(window)
    await adaptation.main(1e9)


def engine() -> None:
    """Workers driven directly, with the figures' own defaults."""
    engine_recovery.main(16, 4)
    many_changes.main(100, 7)
    for job in overhead.JOBS:
        overhead.main(job, 120)
    reference.main(12)
    simulate.main(20, 7)
    loss_curve.main(500, 7)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure everything.")
    parser.add_argument("--runs", type=int, default=10, help="kills for `recovery`")
    parser.add_argument("--changes", type=int, default=30, help="changes for `plan_changes`")
    parser.add_argument("--window", type=int, default=100, help="iterations per window for `control_plane_loss`")
    given = parser.parse_args()
    asyncio.run(whole_system(given.runs, given.changes, given.window))
    engine()
