"""Recovery of the engine from the loss of a rank, and the bandwidth of state moves; or the same loss under torchft.

    python -m benchmarks.engine_recovery --runs 16
    python -m benchmarks.engine_recovery --runs 3 --torchft PYTHON

`--torchft` names the Python of an environment of its own with the public torchft package.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine_recovery.losses import Loss, data_parallel, lose
from benchmarks.recovery import cases
from benchmarks.report import Spread, machine, milliseconds, table, write
from resihp_messages import JobSpec
from resihp_trainer.trials.zygote_client import ZygoteClient

SMALL = JobSpec()
LARGE = JobSpec.model_validate(
    {
        "model": {"hidden": 512, "ffn_hidden": 1408, "num_layers": 8},
        "batch": {"micro_batches": 4, "tokens_per_micro_batch": 32},
        "snapshots": {"every": 0},
    }
)
"""23.9 M parameters, 287 MB of state, and little to compute: what is measured is the move."""
TUNED = ("--heartbeat-ms", "300", "--timeout", "5")
COLUMNS = ("", "median", "1st quartile", "3rd quartile", "minimum", "maximum")


@dataclass(frozen=True)
class Side:
    """Seconds without training (from the signal to the next commit, less an iteration) of one system."""

    name: str
    replicas: int
    net_s: Sequence[float]
    iteration_s: Sequence[float]
    failure: str = ""
    """Why there are no runs."""


def spread(name: str, values: Sequence[float]) -> list[str]:
    s = Spread.of(values)
    return [name, *(milliseconds(max(v, 0.0)) for v in (s.median, s.low, s.high, s.minimum, s.maximum))]


def render_losses(losses: Sequence[Loss]) -> str:
    """Markdown."""
    rows = [
        spread("signal to notice", [x.notice_s for x in losses]),
        spread("planner", [x.plan_s for x in losses]),
        spread("**new plan delivered to first all-reduce of the new epoch**", [x.declared_s for x in losses]),
        spread("notice to first all-reduce, planner included", [x.first_all_reduce_s for x in losses]),
        spread("move of state", [x.move_s for x in losses]),
        spread("**whole recovery less one iteration**", [x.net_s for x in losses]),
        spread("iteration", [x.iteration_s for x in losses]),
    ]
    return table(COLUMNS, rows)


def render_moves(losses: Sequence[Loss]) -> str:
    """Markdown."""
    rate = Spread.of([x.bytes_per_s / 1e6 for x in losses])
    moved = Spread.of([x.bytes_moved / 1e6 for x in losses])
    return (
        f"23.9 M parameters in float32: {moved.median:.0f} MB move (median of {rate.count} losses), at "
        f"{rate.median:.0f} MB/s (quartiles {rate.low:.0f} and {rate.high:.0f}), packing, both digests and the "
        "barrier included."
    )


def render_sides(sides: Sequence[Side]) -> str:
    """Markdown."""
    rows = [
        [
            s.name,
            f"one of {s.replicas}",
            milliseconds(Spread.of(s.net_s).median) if s.net_s else "-",
            ", ".join(milliseconds(v) for v in s.net_s) or s.failure,
            milliseconds(Spread.of(s.iteration_s).median) if s.iteration_s else "-",
        ]
        for s in sides
    ]
    return table(("system", "lost", "net, median ms", "every run", "iteration ms"), rows)


def torchft_side(python: str, replicas: int, tuned: bool, num_runs: int) -> Side:
    """Without runs if there was no recovery to measure."""
    command = [python, "-m", "benchmarks.engine_recovery.torchft_job", "--replicas", str(replicas)]
    command += ["--runs", str(num_runs), *(TUNED if tuned else ())]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    how = f"tuned ({' '.join(TUNED)})" if tuned else "default timeouts"
    if not runs:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Side(f"torchft, {how}", replicas, [], [], f"no run: {reason[:200]}")
    return Side(
        f"torchft {runs[0]['version']}, {how}",
        replicas,
        [r["total_s"] - r["iteration_s"] for r in runs],
        [r["iteration_s"] for r in runs],
    )


def main(runs: int, moves: int, limit_s: float = math.inf) -> None:
    """Losses of the demo's job, and moves of a larger one. After `limit_s` no further loss is begun."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resihp-recovery-") as folder:
        zygote = ZygoteClient(Path(folder), environment={"OMP_NUM_THREADS": "1"})
        try:
            _, store = zygote.store()
            large = [lose(zygote, store, LARGE, rank, "compute") for rank, _ in cases(moves)]
            losses: list[Loss] = []
            for rank, point in cases(runs):
                if not losses or time.monotonic() - began_s < limit_s:
                    losses.append(lose(zygote, store, SMALL, rank, point))
        finally:
            zygote.close()
    parts = [
        f"Milliseconds over {len(losses)} losses, over ranks and points of an iteration. Measured on real workers; the "
        "agents and the scheduler are played by the benchmark, which calls the real planner.",
        render_losses(losses),
        "## Moving state",
        render_moves(large),
    ]
    facts = {**machine(), "job": "demo model, TP 2 x PP 2 x DP 2, float32, gloo, loopback"}
    command = f"python -m benchmarks.engine_recovery --runs {runs} --moves {moves}"
    print(write("engine_recovery", "Recovery of the engine", command, facts, "\n\n".join(parts)).read_text())


def beside(python: str, runs: int) -> None:
    """The same loss under torchft."""
    sides: list[Side] = []
    with tempfile.TemporaryDirectory(prefix="resihp-recovery-") as folder:
        zygote = ZygoteClient(Path(folder), environment={"OMP_NUM_THREADS": "1"})
        try:
            _, store = zygote.store()
            for replicas in (2, 3):
                job = data_parallel(replicas)
                found = [lose(zygote, store, job, replicas - 1, "compute") for _ in range(runs)]
                sides.append(Side("ResiHP", replicas, [x.net_s for x in found], [x.iteration_s for x in found]))
        finally:
            zygote.close()
    sides += [torchft_side(python, replicas, tuned, runs) for replicas in (2, 3) for tuned in (False, True)]
    body = (
        "The demo's model, data parallel, one process per replica, gloo over loopback, the same cores, one replica "
        "killed (SIGKILL) in mid-iteration. Net: from the signal to the next commit of the last survivor, less one "
        f"iteration. {runs} runs each, one system after the other. ResiHP's agents and scheduler are played by the "
        "benchmark (recovery.md has the whole system); torchft runs with its lighthouse and manager servers.\n\n"
    )
    facts = {**machine(), "job": "demo model, DP 2 and DP 3, float32, gloo, loopback"}
    command = f"python -m benchmarks.engine_recovery --torchft PYTHON --runs {runs}"
    print(write("torchft", "Loss of a replica, beside torchft", command, facts, body + render_sides(sides)).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--moves", type=int, default=4)
    parser.add_argument("--torchft", metavar="PYTHON")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further loss is begun")
    given = parser.parse_args()
    if given.torchft:
        beside(given.torchft, given.runs)
    else:
        main(given.runs, given.moves, given.limit)
