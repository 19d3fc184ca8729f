"""Recovery of the engine from the loss of a rank, and the bandwidth of state moves; or the same loss under torchft.

    python -m benchmarks.engine_recovery --runs 16
    python -m benchmarks.engine_recovery --runs 3 --torchft PYTHON [--kept FILE]

`--torchft` names the Python of an environment of its own with the public torchft package; with `--kept` such a
call goes on where an earlier one was cut off.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine_recovery.beside import beside
from benchmarks.engine_recovery.losses import Loss, lose
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
COLUMNS = ("", "median", "1st quartile", "3rd quartile", "minimum", "maximum")


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--moves", type=int, default=4)
    parser.add_argument("--torchft", metavar="PYTHON")
    parser.add_argument("--kept", type=Path, help="with --torchft: what is measured, read and added to")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further loss is begun")
    given = parser.parse_args()
    if given.torchft:
        beside(given.torchft, given.runs, given.kept)
    else:
        main(given.runs, given.moves, given.limit)
