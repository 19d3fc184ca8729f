"""A hundred reconfigurations of one job: same processes, threads, descriptors, memory, and the parameters at the end.

    python -m benchmarks.many_changes --changes 100

Real workers of the trials' small model, driven directly, so that a change is not much longer than an iteration. Every
second change goes to a random layout, the others back to the even one, where the workers are looked at.
`benchmarks.plan_changes` does fewer through the whole system.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch

from benchmarks.processes import Holdings, look_at
from benchmarks.report import Spread, machine, milliseconds, table, write
from resihp_messages import JobSpec
from resihp_messages.link import IterationCommitted, PlanInstalled
from resihp_plan import Cluster, ParallelPlan
from resihp_plan.planner import plan_initial
from resihp_plan.random_plan import random_plan
from resihp_trainer.reference import model_of, train_reference
from resihp_trainer.result import assemble
from resihp_trainer.trials.outcome import BATCH, MODEL
from resihp_trainer.trials.trainer_job import TrainerJob, result_folder
from resihp_trainer.trials.zygote_client import ZygoteClient

WORKERS = 8
WARM_UP = 5
"""Visits of the even layout before the first one that counts: caches and allocators have settled then."""


@dataclass(frozen=True)
class Found:
    """Looks at each visit of the even layout, and what the changes cost."""

    looks: Sequence[dict[int, Holdings]]
    change_s: Sequence[float]
    """Rebuild and move of the slowest rank, per change."""
    same_processes: bool
    max_abs_diff: float
    iterations: int

    def growth(self, what: str) -> float:
        """Largest relative growth over ranks, first to last counted look."""
        first, last = self.looks[WARM_UP], self.looks[-1]
        return max(float(getattr(last[r], what) / getattr(first[r], what)) - 1.0 for r in first)


def measure(changes: int, seed: int) -> Found:
    """One job. Raises `TrialFailed` if anything goes wrong in it."""
    rng = Random(seed)
    with tempfile.TemporaryDirectory(prefix="resihp-changes-") as folder:
        spec = JobSpec.model_validate(
            {
                "name": "changes",
                "iterations": 3 * changes + 60,
                "dtype": "float64",
                "model": MODEL,
                "batch": BATCH,
                "output_dir": folder,
            }
        )
        model, count = model_of(spec), spec.batch.micro_batches
        even = plan_initial(Cluster.of(WORKERS), model, 2, 2, 2, count)
        plans = [
            (random_plan(rng, model, range(WORKERS), count) if n % 2 == 0 else even).with_epoch(n + 2)
            for n in range(changes)
        ]
        zygote = ZygoteClient(Path(folder), environment={"OMP_NUM_THREADS": "1"})
        job: TrainerJob | None = None
        try:
            job = TrainerJob(zygote, zygote.store()[1], spec, range(WORKERS))
            pids = {rank: w.pid for rank, w in job.workers.items()}
            job.install(even.with_epoch(1), "initial")
            drive = _Drive(job, plans, pids)
            job.run(on_pump=drive.on_pump)
            same = not job.dead and all(n == 0 for n in job.starts.values()) and not plans
            found = assemble(result_folder(job), job.last_plan, model)
        finally:
            if job is not None:
                job.close()
            zygote.close()
        reference = train_reference(spec).held.parameters
        worst = max(
            float((whole[name] - p).abs().nan_to_num(nan=torch.inf).max())
            for whole in found.replicas
            for name, p in reference.items()
        )
        return Found(drive.looks, drive.change_s, same, worst, spec.iterations)


class _Drive:
    """Delivers the next plan when the one before is in use; looks at the workers in every even layout."""

    def __init__(self, job: TrainerJob, plans: list[ParallelPlan], pids: dict[int, int]) -> None:
        self.job, self.plans, self.pids = job, plans, pids
        self.looks: list[dict[int, Holdings]] = []
        self.change_s: list[float] = []

    def on_pump(self) -> None:
        newest = self.job.plans[-1].epoch
        steps = self.job.all(IterationCommitted, newest)
        if len({rank for rank, _ in steps}) < WORKERS:
            return
        settled = all(sum(r == rank for r, _ in steps) >= 2 for rank in range(WORKERS))
        if newest % 2 and settled and len(self.looks) <= newest // 2:
            self.looks.append(look_at(self.pids))
        if self.plans and (newest % 2 == 0 or settled):
            installed = [f for _, f in self.job.all(PlanInstalled, newest)]
            self.change_s.append(max(f.rebuild_s + f.move_s for f in installed))
            for frames in self.job.frames.values():  # a long job: forget what was counted
                frames.clear()
            self.job.install(self.plans.pop(0), "planned")


def render(found: Found, changes: int) -> str:
    """Markdown."""
    spread = Spread.of(found.change_s[1:])
    rows = []
    for number in sorted({WARM_UP, *range(WARM_UP, len(found.looks), 9), len(found.looks) - 1}):
        look = list(found.looks[number].values())
        rss = [h.rss_bytes / 2**20 for h in look]
        rows.append(
            [
                str(2 * number),
                _range([h.num_threads for h in look]),
                _range([h.num_descriptors for h in look]),
                f"{min(rss):.1f} to {max(rss):.1f}",
            ]
        )
    return "\n\n".join(
        [
            f"{changes} changes in {found.iterations} iterations; the same {WORKERS} processes throughout: "
            f"{'yes' if found.same_processes else 'NO'}.",
            f"Largest growth of any rank in the even layout, from change {2 * WARM_UP} to the last: threads "
            f"{found.growth('num_threads'):+.1%}, descriptors {found.growth('num_descriptors'):+.1%}, memory "
            f"{found.growth('rss_bytes'):+.1%}.",
            f"Parameters against an undisturbed run: largest difference {found.max_abs_diff:.2g} (float64).",
            f"Rebuild and move of a change: median {milliseconds(spread.median)} ms, quartiles "
            f"{milliseconds(spread.low)} and {milliseconds(spread.high)} ms, most {milliseconds(spread.maximum)} ms.",
            table(("after change", "threads", "descriptors", "resident MiB"), rows),
        ]
    )


def _range(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


def main(changes: int, seed: int) -> None:
    facts = {**machine(), "job": f"trials' small model, float64, {WORKERS} workers (gloo, loopback), driven directly"}
    body = render(measure(changes, seed), changes)
    command = f"python -m benchmarks.many_changes --changes {changes} --seed {seed}"
    print(write("many_changes", "A hundred reconfigurations of one job", command, facts, body).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    if given.changes < 2 * WARM_UP + 2:
        parser.error(f"--changes: at least {2 * WARM_UP + 2}, of which {2 * WARM_UP} settle the memory")
    main(given.changes, given.seed)
