"""One of 4 ranks at half speed: iteration time with the even split of rows, balanced, and at the optimum split.

    python -m benchmarks.attach_balance [--steps 40]

DDP, FSDP2 and the Hugging Face Trainer, four processes each under torchrun; `rank.py` says what is virtual.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.attach_balance.rank import ROWS, UNIT_S
from benchmarks.report import Spread, machine, milliseconds, table, write
from resihp_attach.balance import share_rows

EVERY = 10
"""Iterations between two gatherings of speeds."""
SLOW, HEALTHY = (1.0, 1.0, 0.5, 1.0), (1.0,) * 4
FRAMEWORKS = {"ddp": "DDP", "fsdp2": "FSDP2", "hf": "Hugging Face Trainer"}
BOUND = 1.05


def optimum_s(speeds: Sequence[float]) -> float:
    """Of the compute of one iteration, whole rows."""
    return max(rows / speed for rows, speed in zip(share_rows(ROWS, speeds), speeds, strict=True)) * UNIT_S


def measure(framework: str, speeds: Sequence[float], every: int, steps: int) -> Spread:
    """Seconds of an iteration, once the speeds are known. Raises RuntimeError if the job fails."""
    program = Path(__file__).with_name("rank.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(len(speeds)), str(program)]
    given = [framework, ",".join(map(str, speeds)), str(every or steps + 1), str(steps)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *given], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    (told,) = (line for line in done.stdout.splitlines() if line.startswith('{"ends"'))
    ends = json.loads(told)["ends"][EVERY + 1 :]
    return Spread.of([b - a for a, b in itertools.pairwise(ends)])


def main() -> None:
    """Write benchmarks/results/attach_balance.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    job = f"4 ranks (torchrun, gloo), {ROWS} rows per micro-batch, {1e3 * UNIT_S:.0f} ms per row at full speed"
    facts = {**machine(), "job": job}
    cases = [("ddp", "all healthy, even", HEALTHY, 0), ("ddp", "all healthy, balanced", HEALTHY, EVERY)]
    for framework in FRAMEWORKS:
        cases += [(framework, "rank 2 at half speed, even", SLOW, 0)]
        cases += [(framework, "rank 2 at half speed, balanced", SLOW, EVERY)]
    rows = []
    for framework, case, speeds, every in cases:
        found, best_s = measure(framework, speeds, every, steps), optimum_s(speeds)
        cells = [milliseconds(s) for s in (found.median, found.low, found.high, best_s)]
        share = f"{found.median / best_s:.3f}"
        verdict = "" if not every else "yes" if found.median <= BOUND * best_s else "no"
        rows.append([FRAMEWORKS[framework], case, *cells, share, verdict])
        print(rows[-1], flush=True)
    times = ("iteration, median ms", "1st quartile", "3rd quartile", "optimum split, ms")
    header = ("framework", "case", *times, "median / optimum", f"within {100 * (BOUND - 1):.0f} %")
    body = (
        f"**Virtual clock**: forward and backward pass of each rank are padded, asleep, to its rows x "
        f"{1e3 * UNIT_S:.0f} ms / its speed; all else (collectives, optimizer, the client) is real. The speeds are "
        f"what the client measures on each rank, gathered every {EVERY} iterations; iterations before the first "
        f"gathering are left out. Optimum: the best split into whole rows, compute only.\n\n{table(header, rows)}"
    )
    command = f"python -m benchmarks.attach_balance --steps {steps}"
    write("attach_balance", "Re-balancing rows between data-parallel ranks", command, facts, body)


if __name__ == "__main__":
    main()
