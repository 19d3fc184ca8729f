"""The loss of a job with ten faults beside that of the undisturbed run.

    python -m benchmarks.loss_curve --iterations 500          # measures, writes benchmarks/results/loss_curve.{md,csv}
    python -m benchmarks.loss_curve --draw docs/loss.png      # draws the measured curves; needs matplotlib

Eight workers; every fifty iterations one of them is killed or frozen, and 25 iterations later its replacement is taken
in. Half of the recovery plans are the planner's, the others random layouts. float32, real workers, driven directly.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchmarks.report import RESULTS, machine, write
from resihp_messages import JobSpec, ScriptedFault
from resihp_messages.job import ITERATION_POINTS
from resihp_messages.link import IterationCommitted
from resihp_trainer.reference import model_of, train_reference
from resihp_trainer.trials.script import Event, Loss, Rejoin, Script
from resihp_trainer.trials.sequence import Sequence as Run
from resihp_trainer.trials.trainer_job import TrainerJob
from resihp_trainer.trials.zygote_client import ZygoteClient

WORKERS = 8
FAULTS = 10
LIMIT_S = 900.0
CURVES = RESULTS / "loss_curve.csv"

Curve = dict[int, float]
"""Iteration -> mean loss, nats per token."""


def script_of(iterations: int, seed: int) -> Script:
    """Ten deaths, each followed by the return of the rank."""
    rng = Random(seed)
    gap = iterations // FAULTS
    events: list[Event] = []
    starts = [0] * WORKERS
    for n in range(FAULTS):
        at, rank = n * gap + gap // 4 + 1, rng.randrange(WORKERS)
        kind = "freeze" if n % 4 == 3 else "kill"
        point = ITERATION_POINTS[n % 4]
        fault = ScriptedFault(kind=kind, rank=rank, iteration=at, point=point, start=starts[rank])
        events += [Loss(at, (fault,)), Rejoin(at + gap // 2, (rank,))]
        starts[rank] += 1
    return Script(seed, 0, WORKERS, iterations, tuple(events))


def job_of(script: Script) -> JobSpec:
    """A small model that learns visibly within 500 iterations."""
    return JobSpec.model_validate(
        {
            "name": "loss",
            "seed": script.seed,
            "iterations": script.iterations,
            "model": {"num_layers": 4, "hidden": 64, "num_heads": 8, "num_kv_heads": 4, "ffn_hidden": 192},
            "batch": {"micro_batches": 4, "tokens_per_micro_batch": 128},
            "optimizer": {"lr": 2e-3},
            "faults": script.faults,
        }
    )


def measure(script: Script) -> tuple[Curve, Curve, list[int]]:
    """Losses with faults and without, and the iterations of the faults."""
    spec = job_of(script)
    undisturbed = dict(enumerate(train_reference(spec).losses, start=1))
    with tempfile.TemporaryDirectory(prefix="resihp-loss-") as folder:
        zygote = ZygoteClient(Path(folder), environment={"OMP_NUM_THREADS": "1"})
        job: TrainerJob | None = None
        try:
            job = TrainerJob(zygote, zygote.store()[1], spec, range(WORKERS))
            run = Run(job, model_of(spec), script, limit_s=LIMIT_S)
            run.run()
            faulted = {f.iteration: f.loss for _, f in job.all(IterationCommitted) if f.loss is not None}
            print("\n".join(run.log))
        finally:
            if job is not None:
                job.close()
            zygote.close()
    return faulted, undisturbed, [f.iteration for f in script.faults]


def save(faulted: Curve, undisturbed: Curve, faults: Sequence[int]) -> None:
    with CURVES.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["iteration", "loss_with_faults", "loss_undisturbed", "fault"])
        for k, loss in sorted(undisturbed.items()):
            rows.writerow([k, f"{faulted[k]:.6f}" if k in faulted else "", f"{loss:.6f}", int(k in faults)])


def render(faulted: Curve, undisturbed: Curve, script: Script) -> str:
    """Markdown."""
    gaps = {k: abs(faulted[k] - undisturbed[k]) for k in faulted}
    worst = max(gaps, key=lambda k: gaps[k])
    steps = [abs(undisturbed[k + 1] - undisturbed[k]) for k in range(1, len(undisturbed))]
    around = [gaps[f.iteration] for f in script.faults if f.iteration in gaps]
    return "\n\n".join(
        [
            f"{script}.",
            f"Losses of {len(faulted)} of {len(undisturbed)} iterations were reported by ranks that lived to the end. "
            f"Last loss {faulted[max(faulted)]:.4f} with faults, {undisturbed[len(undisturbed)]:.4f} without (first: "
            f"{undisturbed[1]:.4f}). Largest difference in any iteration {gaps[worst]:.2g} (iteration {worst}), in the "
            f"iterations of the faults {max(around, default=0.0):.2g}; from one iteration to the next the undisturbed "
            f"loss itself changes by up to {max(steps):.2g}. Both curves: [loss_curve.csv](loss_curve.csv).",
        ]
    )


def draw(path: Path) -> None:
    """The picture of the measured curves. Needs matplotlib."""
    from matplotlib.figure import Figure

    with CURVES.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    k = [int(r["iteration"]) for r in rows]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(k, [float(r["loss_undisturbed"]) for r in rows], label="undisturbed, one process", lw=3, color="0.75")
    disturbed = [float(r["loss_with_faults"] or "nan") for r in rows]
    axes.plot(k, disturbed, label="eight workers, ten faults", lw=0.9, color="tab:blue")
    for n, row in enumerate(r for r in rows if r["fault"] == "1"):
        axes.axvline(int(row["iteration"]), color="tab:red", lw=0.6, ls=":", label=None if n else "a worker dies")
    axes.set(xlabel="iteration", ylabel="loss, nats per byte")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main(iterations: int, seed: int) -> None:
    script = script_of(iterations, seed)
    facts = {**machine(), "job": "4 layers of 64, 512 tokens per iteration, float32, 8 workers (gloo, loopback)"}
    faulted, undisturbed, faults = measure(script)
    save(faulted, undisturbed, faults)
    body = render(faulted, undisturbed, script)
    command = f"python -m benchmarks.loss_curve --iterations {iterations} --seed {seed}"
    print(write("loss_curve", "Loss with ten faults and without", command, facts, body).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--draw", type=Path, metavar="PNG")
    given = parser.parse_args()
    if given.draw is not None:
        draw(given.draw)
    else:
        main(given.iterations, given.seed)
