"""How fast does a job adapt to a slow device, to its recovery, to a loss? The whole system, on the virtual clock.

    python -m benchmarks.adaptation --device-flops 1e9

One demo with a device at half speed for a while, one with a killed device. Devices are virtual, so that eight of them
are faithful on few cores; what the host adds (collectives, scheduling) is part of every iteration, and of predictions.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from benchmarks.demo import run_demo
from benchmarks.report import machine, table, write

SLOW = ("--slow", "5@20x0.5", "--for", "35", "--iterations", "60")
KILL = ("--kill", "3@20", "--virtual-clock", "--iterations", "42")


async def slow(device_flops: float) -> dict[str, Any]:
    """A device at half speed for 35 s; the demo's document."""
    return await run_demo(*SLOW, "--device-flops", f"{device_flops:g}")


async def kill(device_flops: float) -> dict[str, Any]:
    """A killed device; the demo's document."""
    return await run_demo(*KILL, "--device-flops", f"{device_flops:g}")


def render(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown."""
    met = [(name, found) for name, document in documents.items() for found in document["adaptation"]]
    changes = [
        (name, change)
        for name, document in documents.items()
        for change in (*document["recoveries"], *document["planned_changes"])
    ]
    return "\n\n".join(
        (
            "Throughput against the bound (healthy throughput times the share of speed that is left), in medians.",
            table(
                (
                    "fault",
                    "healthy tokens/s",
                    "bound",
                    "iterations to 93 % of it",
                    "at 15, of it",
                    "end, of healthy",
                ),
                [
                    (
                        name,
                        f"{found['healthy_tokens_per_s']:.0f}",
                        f"{found['bound_tokens_per_s']:.0f}",
                        _or_dash(found["iterations_to_recover"]),
                        _share(found["at_15_iterations_of_bound"]),
                        _share(found["at_the_end_of_healthy"]),
                    )
                    for name, found in met
                ],
            ),
            "Every change of plan: what was predicted when it was decided, and the median of the iterations after it.",
            table(
                ("fault", "change", "predicted tokens/s", "achieved", "achieved / predicted - 1"),
                [
                    (
                        name,
                        change["difference"],
                        f"{change['predicted_tokens_per_s'] or 0.0:.0f}",
                        f"{change['achieved_tokens_per_s'] or 0.0:.0f}",
                        _error(change),
                    )
                    for name, change in changes
                ],
            ),
        )
    )


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _error(change: Mapping[str, Any]) -> str:
    predicted, achieved = change["predicted_tokens_per_s"], change["achieved_tokens_per_s"]
    return f"{achieved / predicted - 1.0:+.1%}" if predicted and achieved else "-"


async def main(device_flops: float) -> None:
    documents = {"device 5 at 0.5 for 35 s": await slow(device_flops), "device 3 killed": await kill(device_flops)}
    facts = {**machine(), "job": f"demo model, 8 workers, virtual clock at {device_flops:.0e} FLOP/s"}
    command = f"python -m benchmarks.adaptation --device-flops {device_flops:g}"
    print(write("adaptation", "Adaptation to slow and lost devices", command, facts, render(documents)).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device-flops", type=float, default=1e9)
    asyncio.run(main(parser.parse_args().device_flops))
