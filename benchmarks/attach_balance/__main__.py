"""One of 4 ranks at half speed: iteration time with the even split of rows, balanced, and with the optimum split.

    python -m benchmarks.attach_balance [--steps 20]

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

from benchmarks.attach_balance.rank import EVERY, ROWS, UNIT_S
from benchmarks.report import Spread, machine, milliseconds, table, write
from resihp_attach.balance import share_rows

SLOW, HEALTHY = (1.0, 1.0, 0.5, 1.0), (1.0,) * 4
FRAMEWORKS = {"ddp": "DDP", "fsdp2": "FSDP2", "hf": "Hugging Face Trainer"}
BOUND = 1.05


def optimum_s(speeds: Sequence[float]) -> float:
    """Of the compute of one iteration, whole rows."""
    return max(rows / speed for rows, speed in zip(share_rows(ROWS, speeds), speeds, strict=True)) * UNIT_S


def measure(framework: str, speeds: Sequence[float], how: str, steps: int) -> list[float]:
    """Seconds of each iteration, once the speeds are known. Raises RuntimeError if the job fails."""
    program = Path(__file__).with_name("rank.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(len(speeds)), str(program)]
    given = [framework, ",".join(map(str, speeds)), how, str(steps)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *given], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    (told,) = (line for line in done.stdout.splitlines() if line.startswith('{"ends"'))
    ends = json.loads(told)["ends"][EVERY + 1 :]
    return [b - a for a, b in itertools.pairwise(ends)]


def main() -> None:
    """Write benchmarks/results/attach_balance.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--kept", help="file that keeps finished cases, so that a long run can be cut")
    given = parser.parse_args()
    steps, kept = given.steps, Path(given.kept) if given.kept else None
    job = f"4 ranks (torchrun, gloo), {ROWS} rows per micro-batch, {1e3 * UNIT_S:.0f} ms per row at full speed"
    facts = {**machine(), "job": job}
    cases = [("ddp", "all healthy", HEALTHY, "even"), ("ddp", "all healthy", HEALTHY, "balanced")]
    for framework in FRAMEWORKS:
        cases += [(framework, "rank 2 at half speed", SLOW, how) for how in ("even", "optimum", "balanced")]
    known: dict[str, list[float]] = json.loads(kept.read_text()) if kept is not None and kept.exists() else {}
    for framework, _, speeds, how in cases:
        name = f"{framework} {min(speeds)} {how}"
        if name not in known:
            known[name] = measure(framework, speeds, how, steps)
            print(name, known[name], flush=True)
            if kept is not None:
                kept.write_text(json.dumps(known))
    rows = []
    for framework, case, speeds, how in cases:
        found = Spread.of(known[f"{framework} {min(speeds)} {how}"])
        best = Spread.of(known[f"{framework} {min(speeds)} {'optimum' if speeds == SLOW else 'even'}"]).median
        cells = [milliseconds(s) for s in (found.median, found.low, found.high, optimum_s(speeds))]
        share = found.median / best
        verdict = ["", ""] if how != "balanced" else [f"{share:.3f}", "yes" if share <= BOUND else "no"]
        rows.append([FRAMEWORKS[framework], case, how, *cells, *verdict])
    times = ("iteration, median ms", "1st quartile", "3rd quartile", "compute of the optimum, ms")
    header = ("framework", "case", "split", *times, "median / optimum's", f"within {100 * (BOUND - 1):.0f} %")
    body = (
        f"**Virtual clock**: forward and backward pass of each rank are padded, asleep, to its rows x "
        f"{1e3 * UNIT_S:.0f} ms / its speed; all else (collectives, optimizer, the client) is real. `balanced`: the "
        f"speeds are what the client measures on each rank, gathered every {EVERY} iterations; those before the first "
        "gathering are left out. `optimum`: the best split into whole rows, given from the start (of healthy ranks: "
        f"the even one).\n\n{table(header, rows)}"
    )
    command = f"python -m benchmarks.attach_balance --steps {steps}"
    write("attach_balance", "Re-balancing rows between data-parallel ranks", command, facts, body)


if __name__ == "__main__":
    main()
