"""How long does the loss of a worker stop training? Kills over all ranks and over all points of an iteration.

    python -m benchmarks.recovery --runs 10

Net time = `total_s` (last sign of life of the victim -> commit of the redone iteration) minus one median iteration,
since an undisturbed job would have needed that one, too. Each run is a whole `resihp demo`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.demo import run_demo
from benchmarks.report import Spread, machine, milliseconds, table, write

POINTS = ("compute", "gradient", "vote", "optimizer")
PHASES = ("detect", "plan", "abort", "rebuild", "move", "redo", "total")
ITERATIONS = 24
KILL_AT = 12


@dataclass(frozen=True)
class Run:
    """One kill and what it cost."""

    rank: int
    point: str
    phases_s: dict[str, float]
    iteration_s: float
    bytes_moved: int
    difference: str

    @property
    def net_s(self) -> float:
        return self.phases_s["total"] - self.iteration_s


def cases(runs: int) -> list[tuple[int, str]]:
    """(rank, point) of each run; the first 8 cover all ranks, any 4 in a row all points, the first 32 all pairs."""
    return [((3 * i + i // 8) % 8, POINTS[i % 4]) for i in range(runs)]


async def measure(rank: int, point: str) -> Run:
    """One demo. Raises `DemoFailed`."""
    document = await run_demo("--iterations", str(ITERATIONS), "--kill", f"{rank}@{KILL_AT}:{point}")
    return of_document(document, point)


def of_document(document: dict[str, Any], point: str) -> Run:
    """The single recovery of a demo's document."""
    (recovery,) = document["recoveries"]
    return Run(
        rank=recovery["rank"],
        point=point,
        phases_s={phase: float(recovery[f"{phase}_s"]) for phase in PHASES},
        iteration_s=float(document["median_iteration_s"]),
        bytes_moved=int(recovery["bytes_moved"]),
        difference=str(recovery["difference"]),
    )


def render(runs: Sequence[Run]) -> str:
    """Markdown: spread of every phase, then every run."""
    quantities = {
        "**net: total - one iteration**": [r.net_s for r in runs],
        **{phase: [r.phases_s[phase] for r in runs] for phase in PHASES},
        "median iteration": [r.iteration_s for r in runs],
    }
    rows = []
    for name, values in quantities.items():
        s = Spread.of(values)
        figures = (s.median, s.low, s.high, s.minimum, s.maximum)
        rows.append([name, *(milliseconds(v) for v in figures)])
    single = [
        [
            f"{r.rank} {r.point}",
            r.difference,
            milliseconds(r.net_s),
            *(milliseconds(r.phases_s[phase]) for phase in PHASES),
            milliseconds(r.iteration_s),
            f"{r.bytes_moved:,}",
        ]
        for r in runs
    ]
    return "\n\n".join(
        [
            f"Milliseconds over {len(runs)} runs. `abort` runs beside `plan`; see docs/architecture.md (Time).",
            table(("phase", "median", "1st quartile", "3rd quartile", "minimum", "maximum"), rows),
            "## Runs",
            table(("kill", "change", "net", *PHASES, "iteration", "bytes moved"), single),
        ]
    )


async def main(runs: int) -> None:
    facts = {
        **machine(),
        "job": f"{ITERATIONS} iterations, kill in iteration {KILL_AT}, float32, 8 workers "
        "(TP 2 x PP 2 x DP 2, gloo, loopback), one agent, defaults otherwise",
    }
    done: list[Run] = []
    for rank, point in cases(runs):
        run = await measure(rank, point)
        done.append(run)
        print(f"rank {rank} {point}: net {milliseconds(run.net_s)} ms, {run.phases_s}", flush=True)
    command = f"python -m benchmarks.recovery --runs {runs}"
    path = write("recovery", "Recovery from the loss of a worker", command, facts, render(done))
    print(f"net median {milliseconds(Spread.of([r.net_s for r in done]).median)} ms; {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    sys.exit(asyncio.run(main(parser.parse_args().runs)))
