"""Real traces, through `resihp replay`'s own reader."""

from __future__ import annotations

from pathlib import Path

from resihp_cli.commands.replay import replay

TRACES = (
    ("seed_SE_microbatch_compute.csv", "workload imbalance only", "no alarm"),
    ("seed_SE_step_worker.csv", "workload imbalance only", "no alarm"),
    ("seed_ST_microbatch_compute.csv", "stage imbalance only", "no alarm"),
    ("seed_ST_step_worker.csv", "stage imbalance only", "no alarm"),
    ("alibaba_minibatch_job1.csv", "w6 slow in 1811 to 1941", "w6 within 3 samples, cleared, nothing else"),
    ("alibaba_minibatch_job2.csv", "permanent heterogeneity", "heterogeneity once, no fault"),
)


def rows(data: Path) -> list[list[str]]:
    """Trace, truth, wanted, said."""
    table = []
    for name, truth, wanted in TRACES:
        said = [
            f"{v.kind} {v.device or ''} @ {v.iteration} (from {v.first_iteration}, p {v.p:.2f})"
            for v in replay(data / name).verdicts
        ]
        table.append([name, truth, wanted, "; ".join(said) or "nothing"])
    return table
