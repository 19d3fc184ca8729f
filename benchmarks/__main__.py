"""All measurements, one after the other: `python -m benchmarks` (nothing else should run on the machine)."""

from __future__ import annotations

import argparse
import asyncio

from benchmarks import control_plane_loss, plan_changes, recovery


async def main(runs: int, changes: int, window: int) -> None:
    await recovery.main(runs)
    await plan_changes.main(changes)
    await control_plane_loss.main(window)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure everything.")
    parser.add_argument("--runs", type=int, default=10, help="kills for `recovery`")
    parser.add_argument("--changes", type=int, default=30, help="changes for `plan_changes`")
    parser.add_argument("--window", type=int, default=100, help="iterations per window for `control_plane_loss`")
    given = parser.parse_args()
    asyncio.run(main(given.runs, given.changes, given.window))
