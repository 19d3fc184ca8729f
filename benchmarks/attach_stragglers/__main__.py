"""Who is slow among 4 data-parallel ranks: this detector beside the straggler sections of NVIDIA's resiliency package.

    python -m benchmarks.attach_stragglers [--package FOLDER] [--seeds 40] [--rounds 300]

With `--package` (a folder that holds `nvidia_resiliency_ext`; its CUDA parts are not needed for sections) both watch
the same real jobs, and what each costs is measured; always: many simulated streams.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attach_overhead import beside_a_listener, interval, middle
from benchmarks.attach_stragglers import simulated
from benchmarks.attach_stragglers.cost import KINDS
from benchmarks.attach_stragglers.jobs import AFTER, EVERY, HEALTHY, naming, run, system
from benchmarks.attach_stragglers.sections import THRESHOLD
from benchmarks.report import machine, table, write

FACTORS = (1.2, 1.3, 2.0)
SPREADS = {"documents of varying length": 0.8, "equal documents": 0.0}


def watched(package: str) -> tuple[str, list[float], list[float]]:
    """Tables of the real jobs; wall and processor seconds of every report of rank 0."""
    tables, wall_s, processor_s = [], list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder, system(Path(folder)):
        for title, spread in SPREADS.items():
            found = []
            for factor in FACTORS:
                job = run(Path(folder), f"{title.split()[0]}-{100 * factor:.0f}", package, factor, spread)
                found.append(job["named"])
                print(title, factor, job["named"], flush=True)
                wall_s, processor_s = wall_s + job["wall_s"], processor_s + job["processor_s"]
            tables.append(f"### Real jobs, {title}\n\n{_namings(found)}")
    return "\n\n".join(tables), wall_s, processor_s


def _namings(found: Sequence[dict[str, list[tuple[int, list[int]]]]]) -> str:
    rows = []
    for watcher in found[0]:
        cells, false = [], 0
        for job in found:
            seen = naming([(iteration, set(ranks)) for iteration, ranks in job[watcher]])
            cells.append("not named" if seen.delay is None else str(seen.delay))
            false += seen.false
        rows.append([watcher, *cells, str(false)])
    header = ("", *(f"{factor:g}x: named after" for factor in FACTORS), "false namings")
    return table(header, rows)


def costs(rounds: Sequence[Sequence[float]], wall_s: Sequence[float], processor_s: Sequence[float]) -> str:
    """`rounds`: of `cost.py`."""
    rows = []
    for kind in (1, 2):
        values = [r[kind] - r[0] for r in rounds]
        low, high = interval(values)
        own = f"{1e6 * middle(values):.0f} ({1e6 * low:.0f} to {1e6 * high:.0f})"
        report = [f"{1e6 * statistics.median(seconds) / EVERY:.0f}" for seconds in (processor_s, wall_s)]
        rows.append([KINDS[kind], own, *(report if kind == 2 else ("0", "0"))])
    header = ("", "us per step", "reports, us per step", "reports, us of wall clock per step")
    return table(header, rows)


def main() -> None:
    """Write benchmarks/results/attach_stragglers.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", help="folder that holds nvidia_resiliency_ext")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=300, help="of measured steps")
    given = parser.parse_args()
    facts: dict[str, Any] = {**machine(), "job": "4 data-parallel ranks"}
    parts = []
    if given.package:
        found, wall_s, processor_s = watched(given.package)
        rounds = beside_a_listener("benchmarks.attach_stragglers.cost", given.package, str(given.rounds))
        parts = [_of_jobs(), found, "### Cost", _of_costs(), costs(rounds, wall_s, processor_s)]
    parts.append(simulated.body(given.seeds, given.package))
    command = f"python -m benchmarks.attach_stragglers --seeds {given.seeds} --rounds {given.rounds}"
    command += " --package FOLDER" if given.package else ""
    title = "Slow ranks, beside NVIDIA's straggler sections"
    print(write("attach_stragglers", title, command, facts, "\n\n".join(parts)).read_text())


def _of_jobs() -> str:
    return (
        "## The same real jobs, both watching\n\n"
        "DDP on four gloo ranks under `resihp run -- torchrun`, one job per factor and kind of documents. **Virtual "
        "clock**: the passes of each rank last, asleep, for as long as its documents are meant to take; waits, hooks, "
        f"sections, reports, agent and detector are real. Rank 2 is slow from iteration {HEALTHY + 1} on, for {AFTER} "
        f"iterations. ResiHP: by its hooks alone. Sections: the package's `Detector` around forward and backward pass, "
        f"in the same processes, with a report every {EVERY} iterations (its default is every 60 s) and its default "
        f"threshold of {THRESHOLD}; its CUPTI extension, which profiles kernels, is replaced by one without kernels. "
        "Relative: to the fastest rank; individual: to the rank's own best. Iterations from the onset until rank 2 was "
        "named; false: other ranks, or rank 2 while healthy, over all three jobs."
    )


def _of_costs() -> str:
    return (
        "Processor time of the training thread in one process, around next to no work, with caches emptied before each "
        "step of two micro-batches; middle of the differences to plain steps (95 % interval). Reports: of the jobs "
        f"above, median of rank 0, spread over the {EVERY} iterations between two; by wall clock with the wait for the "
        "other ranks, who take part. ResiHP's comparison is made by the detector, outside the job (last column of "
        "the tables below); its client's thread takes 0.2 to 0.5 % of a core besides."
    )


if __name__ == "__main__":
    main()
