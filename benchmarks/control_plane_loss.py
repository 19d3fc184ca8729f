"""Does training notice when a service dies? SIGKILL of detector, scheduler and nats-server in turn, then a real fault.

    python -m benchmarks.control_plane_loss

Step times are read from the workers' shared memory, beginning to beginning, so pauses between iterations count, and a
service that is down hides nothing. The supervisor starts each killed service again; that start-up competes with
training for the same cores.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.demo import demo
from benchmarks.progress_watch import ProgressWatch, pages_of
from benchmarks.report import machine, milliseconds, percentile, table, write
from resihp_cli.client import GatewayClient

VICTIMS = ("detector", "scheduler", "nats")
AGENT = "agent-n0"
WARM_UP = 8
"""Iterations before the measurement."""


@dataclass(frozen=True)
class Loss:
    """Step times around the deaths of services, and what the later fault came to."""

    baseline_s: Sequence[float]
    after_s: Mapping[str, Sequence[float]]
    """Service -> step times of the iterations that follow its death."""
    document: dict[str, Any]

    @property
    def all_after_s(self) -> list[float]:
        return [s for steps in self.after_s.values() for s in steps]


async def measure(window: int, *, fault_rank: int = 3, extra: Sequence[str] = ()) -> Loss:
    """One demo: warm-up, an undisturbed window, a window after each SIGKILL, then a scripted death of a worker.

    Raises `DemoFailed` unless the demo holds all its promises to the end, the fault after the restarts included.
    """
    starts = [WARM_UP + (1 + n) * window for n in range(len(VICTIMS))]
    fault_at = starts[-1] + window + 2
    arguments = ["--iterations", str(fault_at + 8), "--kill", f"{fault_rank}@{fault_at}", *extra]
    async with demo(arguments) as running:
        async with GatewayClient((await running.info()).gateway_url) as client:
            await running.reach(client, 1)
            info = await running.info()
            watch = ProgressWatch(pages_of(info.pids[AGENT]))
            follower = asyncio.create_task(watch.follow())
            for start, victim in zip(starts, VICTIMS, strict=True):
                await watch.reach(start)
                os.kill(info.pids[victim], signal.SIGKILL)
            await watch.reach(fault_at)
        document = await running.result()
        follower.cancel()
    after = {victim: watch.step_s(start, start + window - 1) for start, victim in zip(starts, VICTIMS, strict=True)}
    return Loss(watch.step_s(WARM_UP, WARM_UP + window - 1), after, document)


def render(loss: Loss) -> str:
    """Markdown."""

    def row(name: str, steps: Sequence[float]) -> list[str]:
        figures = (statistics.median(steps), percentile(steps, 95), percentile(steps, 99), max(steps))
        return [name, str(len(steps)), *(milliseconds(f) for f in figures)]

    rows = [
        row("undisturbed", loss.baseline_s),
        *(row(f"after SIGKILL of {victim}", steps) for victim, steps in loss.after_s.items()),
        row("all three together", loss.all_after_s),
    ]
    done = loss.document
    (recovery,) = done["recoveries"]
    return "\n\n".join(
        [
            "Step times in milliseconds, beginning to beginning, from the moment of the SIGKILL on:",
            table(("", "iterations", "median", "p95", "p99", "maximum"), rows),
            f"The fault after all restarts (rank {recovery['rank']} killed) was handled: {recovery['difference']}; "
            f"total {milliseconds(recovery['total_s'])} ms; {done['committed']} of {done['iterations']} iterations "
            f"committed, {done['samples']['lost']} samples lost, {done['samples']['repeated']} repeated.",
        ]
    )


async def main(window: int) -> None:
    job = "float32, 8 workers (TP 2 x PP 2 x DP 2, gloo, loopback), one agent, defaults otherwise"
    facts = {**machine(), "job": job}
    loss = await measure(window)
    command = f"python -m benchmarks.control_plane_loss --window {window}"
    title = "Loss of the control plane while training is healthy"
    print(write("control_plane_loss", title, command, facts, render(loss)).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--window", type=int, default=100, help="iterations per window")
    sys.exit(asyncio.run(main(parser.parse_args().window)))
