"""Iterations with telemetry, votes, fingerprints and snapshots against bare ones, paired in one run.

    python -m benchmarks.overhead --pairs 15

Two data-parallel workers on two cores, so that nobody waits for a core. Blocks of both kinds alternate; a pair is two
neighbouring blocks. Wall seconds are rank 0's, from the begin of an iteration to its end (all ranks end together, by
the last collective). Processor seconds are summed over the ranks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median

from benchmarks.overhead.worker import BLOCK, LEAD, SHIFT, place
from benchmarks.report import machine, milliseconds, table, write
from resihp_messages import JobSpec
from resihp_plan import Cluster
from resihp_plan.planner import plan_initial
from resihp_trainer.reference import model_of
from resihp_trainer.trials.trainer_job import TrainerJob
from resihp_trainer.trials.zygote_client import ZygoteClient

WORKER = "benchmarks.overhead.worker:main"
BOUND = 0.005
DRAWS = 4000

Rows = Sequence[tuple[int, float, float]]
"""(iteration, wall seconds, processor seconds)."""


@dataclass(frozen=True)
class Paired:
    """Means of the counted iterations of two neighbouring blocks, in seconds."""

    whole_s: float
    bare_s: float

    @property
    def overhead(self) -> float:
        return self.whole_s / self.bare_s - 1.0


@dataclass(frozen=True)
class Found:
    """Median of the pairs' ratios with a 95 % interval (bootstrap over pairs)."""

    overhead: float
    low: float
    high: float
    whole_s: float
    bare_s: float

    @classmethod
    def of(cls, pairs: Sequence[Paired], rng: Random) -> Found:
        """Raises ValueError without pairs."""
        ratios = [p.overhead for p in pairs]
        if not ratios:
            raise ValueError("no pairs")
        drawn = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
        low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]
        return cls(median(ratios), low, high, median(p.whole_s for p in pairs), median(p.bare_s for p in pairs))


def job_of(pairs: int, workers: int, output: Path) -> JobSpec:
    """The demo's model, data parallel, half of its batch: a short iteration is what overhead shows in."""
    return JobSpec.model_validate(
        {
            "name": "overhead",
            "iterations": 2 * BLOCK * (pairs + 1) - SHIFT,
            "parallel": {"tp": 1, "pp": 1, "dp": workers},
            "batch": {"micro_batches": 4},
            "output_dir": str(output),
        }
    )


def measure(pairs: int, workers: int) -> list[Rows]:
    """Rows of every rank."""
    with tempfile.TemporaryDirectory(prefix="resihp-overhead-") as folder:
        spec = job_of(pairs, workers, Path(folder))
        zygote = ZygoteClient(Path(folder), WORKER, environment={"OMP_NUM_THREADS": "1"})
        job: TrainerJob | None = None
        try:
            job = TrainerJob(zygote, zygote.store()[1], spec, range(workers))
            plan = plan_initial(Cluster.of(workers), model_of(spec), 1, 1, workers, spec.batch.micro_batches)
            job.install(plan.with_epoch(1), "initial")
            job.run()
        finally:
            if job is not None:
                job.close()
            zygote.close()
        return [json.loads((Path(folder) / f"overhead-{rank}.json").read_text()) for rank in range(workers)]


def pairs_of(seconds: Sequence[tuple[int, float]]) -> list[Paired]:
    """Pairs of neighbouring blocks after the first two; `seconds`: (iteration, seconds)."""
    blocks: dict[int, list[float]] = {}
    for iteration, spent in seconds:
        block, at = place(iteration)
        if block >= 2 and at >= LEAD:
            blocks.setdefault(block, []).append(spent)
    firsts = [n for n in sorted(blocks) if n % 2 == 0 and n + 1 in blocks]
    return [Paired(fmean(blocks[n]), fmean(blocks[n + 1])) for n in firsts]


def render(wall: Found, cpu: Found) -> str:
    """Markdown."""
    rows = [
        (
            name,
            milliseconds(f.whole_s),
            milliseconds(f.bare_s),
            f"{f.overhead:+.2%}",
            f"{f.low:+.2%} to {f.high:+.2%}",
        )
        for name, f in (("wall time of an iteration", wall), ("processor time, all ranks", cpu))
    ]
    verdict = "below" if wall.high < BOUND else "NOT below" if wall.low > BOUND else "too uncertain to compare with"
    return "\n\n".join(
        [
            f"Median overhead of wall time {wall.overhead:+.2%}: {verdict} the bound of {BOUND:.1%}.",
            table(("", "all on, ms", "all off, ms", "overhead", "95 % interval"), rows),
            "All on: vote with proof of samples, timing of every unit, report of every iteration, progress of every "
            "operation, fingerprints and snapshots in the other worker's memory every 10 iterations. All off: none of "
            "them; the global norm for clipping stays.",
        ]
    )


def main(pairs: int, workers: int) -> None:
    facts = {
        **machine(),
        "job": f"demo model, float32, 512 tokens per iteration, {workers} workers (DP, gloo, loopback)",
    }
    rows = measure(pairs, workers)
    rng = Random(0)
    wall = Found.of(pairs_of([(k, s) for k, s, _ in rows[0]]), rng)
    summed = [(r[0][0], sum(c for _, _, c in r)) for r in zip(*rows, strict=True)]
    cpu = Found.of(pairs_of(summed), rng)
    facts["pairs"] = f"{pairs} pairs of blocks of {BLOCK} iterations, the first {LEAD} of each block not counted"
    command = f"python -m benchmarks.overhead --pairs {pairs} --workers {workers}"
    print(write("overhead", "Cost of watching a healthy job", command, facts, render(wall, cpu)).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    main(given.pairs, given.workers)
