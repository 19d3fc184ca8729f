"""Iterations with telemetry, votes, fingerprints and snapshots against bare ones, paired in one run.

    python -m benchmarks.overhead --blocks 120 --job short

Two workers on two cores, so that nobody waits for a core. Blocks of both kinds alternate; a pair is a block and the
bare ones around it. Wall seconds are rank 0's, from the begin of an iteration to its end (all ranks end together, by
the last collective). Processor seconds are summed over ranks and all their threads. A result is kept for each job.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.overhead.found import Run, render
from benchmarks.overhead.worker import BLOCK, EVERY, LEAD, SHIFT
from benchmarks.report import RESULTS, machine, write
from resihp_messages import JobSpec
from resihp_plan import Cluster
from resihp_plan.planner import plan_initial
from resihp_trainer.reference import model_of
from resihp_trainer.trials.trainer_job import TrainerJob
from resihp_trainer.trials.zygote_client import ZygoteClient

WORKER = "benchmarks.overhead.worker:main"
WORKERS = 2


@dataclass(frozen=True)
class Job:
    """One job to measure."""

    what: str
    spec: Mapping[str, Any]


PP = {"tp": 1, "pp": 2, "dp": 1}
DP = {"tp": 1, "pp": 1, "dp": 2}
JOBS = {
    "replicas": Job(
        "demo model (1.7 M parameters), DP 2, 512 tokens per iteration. The replicas hold the same state, so "
        "copies are not needed and not made",
        {"parallel": DP, "batch": {"micro_batches": 4}},
    ),
    "short": Job(
        "demo model (1.7 M parameters), PP 2, 512 tokens per iteration, every stage copied to the other worker",
        {"parallel": PP, "batch": {"micro_batches": 4}},
    ),
    "long": Job(
        "demo model (1.7 M parameters), PP 2, 4,096 tokens per iteration, every stage copied to the other worker",
        {"parallel": PP, "batch": {"micro_batches": 8, "tokens_per_micro_batch": 512}},
    ),
    "large": Job(
        "10.1 M parameters (hidden 320, 8 layers), PP 2, 1,024 tokens per iteration, every stage copied to the other",
        {
            "parallel": PP,
            "model": {"hidden": 320, "ffn_hidden": 864, "mlp_block": 32},
            "batch": {"micro_batches": 4, "tokens_per_micro_batch": 256},
        },
    ),
}


def measure(job: Job, blocks: int) -> Run:
    """Rows of every rank."""
    with tempfile.TemporaryDirectory(prefix="resihp-overhead-") as folder:
        iterations = BLOCK * (blocks + 1) - SHIFT
        fixed = {"name": "overhead", "iterations": iterations, "output_dir": folder}
        often = {"snapshots": {"every": EVERY}, "telemetry": {"fingerprint_every": EVERY}}
        spec = JobSpec.model_validate({**fixed, **often, **job.spec})
        environment = {"OMP_NUM_THREADS": "1"}
        zygote = ZygoteClient(Path(folder), WORKER, environment=environment)
        running: TrainerJob | None = None
        try:
            running = TrainerJob(zygote, zygote.store()[1], spec, range(WORKERS))
            p = spec.parallel
            plan = plan_initial(Cluster.of(WORKERS), model_of(spec), p.tp, p.pp, p.dp, spec.batch.micro_batches)
            running.install(plan.with_epoch(1), "initial")
            running.run()
        finally:
            if running is not None:
                running.close()
            zygote.close()
        return Run([json.loads((Path(folder) / f"overhead-{r}.json").read_text()) for r in range(WORKERS)])


def main(name: str, blocks: int) -> None:
    """Measure one job; the result file has the newest result of every job."""
    about, command = dict(machine()), f"python -m benchmarks.overhead --job {name} --blocks {blocks}"
    section = f"## {name}: {JOBS[name].what}\n\n`{command}`, load before the run {about['load before the run']}.\n\n"
    section += render(measure(JOBS[name], blocks))
    path = RESULTS / "overhead.md"
    kept = _sections(path.read_text() if path.exists() else "")
    kept[name] = section
    facts = {
        **about,
        "pairs": f"blocks of {BLOCK} iterations on the same documents, the first {LEAD} of each not counted; every "
        f"{EVERY} iterations a round of fingerprints and of snapshots in the other worker's memory",
    }
    print(section)
    write("overhead", "Cost of watching a healthy job", command, facts, "\n\n".join([ABOUT, *kept.values()]))


ABOUT = (
    "All on: vote with proof of samples, timing of every unit, report of every iteration, progress of every operation, "
    "fingerprints, snapshots. All off: none of them; the global norm for clipping stays. The ledger is what the "
    "training thread spends in each, by clocks around it in blocks of their own (what they take themselves between "
    "units, where the caches are empty, is measured by entries around nothing and taken off), plus the threads that "
    "write reports, copy state and (of gloo, in a round) transfer copies. A round of snapshots and fingerprints counts "
    "as often as by default. What watching takes hardly depends on the tokens, so the shortest iteration shows it most."
)


def _sections(text: str) -> dict[str, str]:
    """Job -> section of an earlier result."""
    parts = text.split("\n## ")[1:]
    return {p.partition(":")[0]: f"## {p.strip()}" for p in parts if p.partition(":")[0] in JOBS}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--job", choices=JOBS, default="short")
    parser.add_argument("--blocks", type=int, default=120)
    given = parser.parse_args()
    main(given.job, given.blocks)
