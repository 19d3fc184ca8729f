"""Does training notice when a service dies? SIGKILL of detector, scheduler and nats-server in turn, then a real fault.

    python -m benchmarks.control_plane_loss

Step times are read from the workers' shared memory, beginning to beginning, so pauses between iterations count, and a
service that is down hides nothing. The supervisor starts each killed service again; on one small machine that start-up
competes with training for the same cores. What that alone costs is measured too: before the kills, in windows of their
own, a second process imports the same service while nothing is killed (the control).
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
CONTROLS = ("detector", "scheduler")
"""Services whose start-up is imitated without a kill. nats-server starts in 10 ms and needs none."""
AGENT = "agent-n0"
WARM_UP = 8
"""Iterations before the measurement."""


@dataclass(frozen=True)
class Loss:
    """Step times around the deaths of services, and what the later fault came to."""

    baseline_s: Sequence[float]
    control_s: Mapping[str, Sequence[float]]
    """Service -> step times of the iterations in which a second process imported it; nothing was killed."""
    after_s: Mapping[str, Sequence[float]]
    """Service -> step times of the iterations that follow its death."""
    document: dict[str, Any]

    @property
    def all_after_s(self) -> list[float]:
        return [s for steps in self.after_s.values() for s in steps]


async def measure(
    window: int, *, fault_rank: int = 3, controls: Sequence[str] = CONTROLS, extra: Sequence[str] = ()
) -> Loss:
    """One demo: warm-up, an undisturbed window, one per control, one after each SIGKILL, then a scripted death.

    Raises `DemoFailed` unless the demo holds all its promises to the end, the fault after the restarts included.
    """
    begins = [WARM_UP + n * window for n in range(1 + len(controls) + len(VICTIMS) + 1)]
    imitated = dict(zip(controls, begins[1:], strict=False))
    killed = dict(zip(VICTIMS, begins[1 + len(controls) :], strict=False))
    fault_at = begins[-1] + 2
    arguments = ["--iterations", str(fault_at + 8), "--kill", f"{fault_rank}@{fault_at}", *extra]
    async with demo(arguments) as running:
        async with GatewayClient((await running.info()).gateway_url) as client:
            await running.reach(client, 1)
            info = await running.info()
            watch = ProgressWatch(pages_of(info.pids[AGENT]))
            follower = asyncio.create_task(watch.follow())
            for service, begin in imitated.items():
                await watch.reach(begin)
                twin = await asyncio.create_subprocess_exec(sys.executable, "-c", f"import resihp_{service}.__main__")
                await watch.reach(begin + window - 1)
                if await twin.wait() != 0:
                    raise RuntimeError(f"the control could not import resihp_{service}")
            for victim, begin in killed.items():
                await watch.reach(begin)
                os.kill(info.pids[victim], signal.SIGKILL)
            await watch.reach(fault_at)
        document = await running.result()
        follower.cancel()

    def steps_s(begin: int) -> list[float]:
        return watch.step_s(begin, begin + window - 1)

    return Loss(
        steps_s(WARM_UP),
        {service: steps_s(begin) for service, begin in imitated.items()},
        {victim: steps_s(begin) for victim, begin in killed.items()},
        document,
    )


def render(loss: Loss) -> str:
    """Markdown."""

    def row(name: str, steps: Sequence[float]) -> list[str]:
        figures = (statistics.median(steps), percentile(steps, 95), percentile(steps, 99), max(steps))
        return [name, str(len(steps)), *(milliseconds(f) for f in figures)]

    rows = [
        row("undisturbed", loss.baseline_s),
        *(row(f"control: a second {name} is imported", steps) for name, steps in loss.control_s.items()),
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
