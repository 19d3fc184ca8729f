"""`python -m benchmarks.detection`: writes benchmarks/results/detection.md."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from benchmarks.detection import cost, iterations, links, real
from benchmarks.detection.devices import Cell, run_cell
from benchmarks.detection.lengths import document_lengths, micro_batches
from benchmarks.detection.score import rate, share
from benchmarks.report import machine, table, write

SLOWDOWNS = (1.1, 1.2, 1.5, 2.0)
CONTEXTS = {"packed 8K": 8192, "packed 16K": 16384, "packed 32K": 32768, "unpacked": None}


def main(given: argparse.Namespace) -> None:
    rng = np.random.default_rng(given.seed)
    data = Path(given.data) if given.data else None
    lengths, source = document_lengths(data, rng)
    pools = {name: micro_batches(lengths, context, 4000, rng) for name, context in CONTEXTS.items()}
    facts = machine()
    began = time.process_time()
    cells = []
    for name, pool in pools.items():
        sizes = {"seeds": given.seeds, "rounds": given.rounds, "baseline_seeds": given.baseline_seeds}
        cells.append(run_cell(name, pool, SLOWDOWNS, **sizes, rng=rng))
        print(table(_HEADER, _ours(cells[-1])), flush=True)
    parts = [
        _INTRODUCTION.format(source=source, seeds=given.seeds),
        "## Devices: ResiHP\n\n" + table(_HEADER, [row for c in cells for row in _ours(c)]),
        "## Devices: the same streams, other rules\n\n" + table(_RULES, [row for c in cells for row in _others(c)]),
    ]
    if given.runs:
        found, errors = iterations.run(pools["packed 32K"], (1.25, 1.5, 2.0), given.runs, rng)
        parts.append(_iterations(found, errors))
    result = links.run(2.0, given.links, rng)
    parts.append(
        f"## Links\n\n2x slower transfers: right edge named, and no other, in {share(result.found, result.total)} % of "
        f"{result.total} faults; {result.wrong} wrong edges. Noise of transfers 10 %, late peers up to 20 transfers."
    )
    if data is not None:
        parts.append("## Real traces\n\n" + table(("trace", "truth", "wanted", "said"), real.rows(data)))
    devices, ms, per_s, size = cost.measure(pools["unpacked"], rng, 20)
    parts.append(
        f"## Cost\n\n{devices} devices in one process: {ms:.1f} ms of CPU per iteration ({per_s:,.0f} device-records "
        f"per CPU second, judging only: no bus, no decoding); snapshot {size:.0f} bytes per device."
    )
    command = f'make bench-detection ARGS="{given.command}"' if given.command else "make bench-detection"
    facts = {**facts, "CPU of the run": f"{time.process_time() - began:.0f} s", "seed": str(given.seed)}
    path = write("detection", "Detection of slow devices, links and iterations", command, facts, "\n\n".join(parts))
    print(path.read_text())


_INTRODUCTION = """Generated fleets of 256 devices (DP 8 x PP 4 x TP 8), {seeds} seeds per row, lengths: {source}.
Noise 3 % per micro-batch, 2 % per device and iteration, hiccups in 0.5 % of device-iterations (+30 to 100 %), common
drift 2 %, device offsets 1.5 %. In every stage four devices of 64 are slow at the same time, one of each slowdown.
Delay counts the faulty iterations seen, the naming one included; a fault not named within 20 counts as missed. Shares
in percent and rates carry 95 % intervals.
"""

_HEADER = (
    "work", "slowdown", "faults", "found %", "delay median", "delay p95", "named alone %", "recovery noticed %",
    "severity error p50 / p95 / p99 %", "false alarms per 1,000 device-iterations", "device-iterations",
)  # fmt: skip
_RULES = (
    "work",
    "rule",
    "false alarms per 1,000",
    *(f"found % at {s}x" for s in SLOWDOWNS),
    "median delay at 1.2x / 1.5x",
)


def _ours(cell: Cell) -> list[list[object]]:
    rows: list[list[object]] = []
    for slowdown, s in cell.scores["ResiHP"].items():
        errors = cell.severity_errors[slowdown]
        severity = " / ".join(f"{100 * np.quantile(errors, q):.1f}" for q in (0.5, 0.95, 0.99)) if errors else "-"
        n = len(s.faults)
        rows.append([
            cell.work, f"{slowdown}x", n, share(s.found, n), s.delay(0.5), s.delay(0.95), share(s.named_alone, n),
            share(s.recovered, s.found), severity, rate(s.false_alarms, s.device_iterations),
            f"{s.device_iterations:,}",
        ])  # fmt: skip
    return rows


def _others(cell: Cell) -> list[list[object]]:
    rows: list[list[object]] = []
    for name, scores in cell.scores.items():
        one = next(iter(scores.values()))
        found = [share(s.found, len(s.faults)) for s in scores.values()]
        delays = f"{scores[1.2].delay(0.5)} / {scores[1.5].delay(0.5)}"
        rows.append([cell.work, name, rate(one.false_alarms, one.device_iterations), *found, delays])
    return rows


def _iterations(found: dict[str, dict[float, iterations.Result]], errors: list[float]) -> str:
    rows = []
    for name, by in found.items():
        false = sum(r.false_alarms for r in by.values())
        healthy = sum(r.healthy_iterations for r in by.values())
        rows.append([name, rate(false, healthy), *(share(r.found, r.total) for r in by.values())])
    header = ("rule", "false alarms per 1,000 iterations", "found % at 1.25x", "1.5x", "2x")
    return (
        "## Iteration time only\n\nOne device slows down; DP 2 x PP 4, packed 32K. Prediction error (mean absolute) "
        "over healthy iterations: "
        f"{100 * np.mean(errors):.2f} % mean, {100 * np.max(errors):.2f} % worst run, "
        f"with {100 * iterations.NOISE:.0f} % of noise (floor {100 * iterations.NOISE * 0.798:.2f} %).\n\n"
        + table(header, rows)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description="Measure detection.")
    parser.add_argument("--data", default=os.environ.get("RESIHP_DATA_DIR"), help="folder of real traces and lengths")
    parser.add_argument("--seeds", type=int, default=20, help="jobs of 256 devices per stream")
    parser.add_argument("--rounds", type=int, default=25, help="faults per device group and slowdown")
    parser.add_argument("--baseline-seeds", type=int, default=2, help="jobs that the baselines see")
    parser.add_argument("--runs", type=int, default=40, help="runs per slowdown with iteration time only")
    parser.add_argument("--links", type=int, default=400, help="link faults")
    parser.add_argument("--seed", type=int, default=1)
    import sys

    arguments = parser.parse_args()
    arguments.command = " ".join(a for a in sys.argv[1:] if "data" not in a and "/" not in a)
    main(arguments)
