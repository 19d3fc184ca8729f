"""What the memory model foresees against what worker processes really take.

    python -m benchmarks.memory
    python -m benchmarks.memory --only state --kept parts.json    # in parts, on a shared machine

Real workers (gloo, loopback), driven directly. Taken is the growth of a worker's resident set from its hello to its
peak in iterations after the first, less what a worker of a tiny model grows by: code, threads, buffers. Twice:
*allocated*, with every tensor of 64 KiB or more in a mapping of its own, so that what is freed is gone; and with glibc
as it comes, whose heap keeps and fragments. Two models: one that is mostly activations, one that is mostly state.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import look_at
from benchmarks.report import machine, table, write
from resihp_messages import JobSpec
from resihp_messages.link import Finished
from resihp_plan import (
    Cluster,
    Device,
    MemoryModel,
    ModelSpec,
    ParallelPlan,
    ReplicaPlan,
    Schedule,
    StagePlan,
    Workload,
    describe_plan,
    layout,
)
from resihp_plan.planner import plan_change, plan_initial
from resihp_trainer.reference import model_of
from resihp_trainer.trials.outcome import BATCH, MODEL
from resihp_trainer.trials.trainer_job import TrainerJob
from resihp_trainer.trials.zygote_client import ZygoteClient

ITERATIONS = 3
_RESET_PEAK = "5"
"""Written to /proc/PID/clear_refs: the peak of the resident set (VmHWM) begins anew."""
EXACT = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10)}
"""Of glibc's mallopt(3); a fixed threshold does not grow with what is freed."""
LONG: dict[str, Any] = {"num_layers": 8, "hidden": 128, "num_heads": 4, "num_kv_heads": 4, "ffn_hidden": 512}
WIDE: dict[str, Any] = {"num_layers": 8, "hidden": 384, "num_heads": 4, "num_kv_heads": 4, "ffn_hidden": 1536}


def _pipe(*bounds: int, members: Sequence[int] = (1,)) -> tuple[StagePlan, ...]:
    """Stages of layers [bounds[i], bounds[i + 1]), each on as many ranks as there are weights."""
    n = len(members)
    return tuple(
        StagePlan(a, b, tuple(range(s * n, (s + 1) * n)), tuple(members))
        for s, (a, b) in enumerate(itertools.pairwise(bounds))
    )


DEEP = ParallelPlan(1, (ReplicaPlan(_pipe(0, 2, 4, 6, 8), 6),))
UNEVEN = ParallelPlan(1, (ReplicaPlan(_pipe(0, 4, 8, members=(3, 1)), 6),))


@dataclass(frozen=True)
class Case:
    """A job of a few iterations under one plan."""

    name: str
    plan: ParallelPlan
    model: Mapping[str, Any]
    tokens: int

    @property
    def spec(self) -> JobSpec:
        batch = {"micro_batches": 6, "tokens_per_micro_batch": self.tokens}
        return JobSpec.model_validate(
            {
                "name": "memory",
                "iterations": ITERATIONS,
                "model": dict(self.model),
                "batch": batch,
                "snapshots": {"every": 0},
                "telemetry": {"fingerprint_every": 0},
            }
        )

    @property
    def foreseen(self) -> dict[int, int]:
        """Bytes of every rank at its peak."""
        model = model_of(self.spec)
        held = layout(self.plan, model)
        memory = MemoryModel(model, self.tokens, {})
        return {rank: memory.rank_bytes(held, rank) for rank in self.plan.active}


TINY = Case("tiny", ParallelPlan(1, (ReplicaPlan(_pipe(0, 1, 2, 3, 4), 6),)), MODEL, BATCH["tokens_per_micro_batch"])


def cases() -> list[Case]:
    """Both models under both schedules, and with uneven tensor parallelism; with and without recomputation."""
    zero_bubble = dataclasses.replace(DEEP, schedule=Schedule.ZB_H1)
    plans = {"1F1B, PP 4": DEEP, "ZB-H1, PP 4": zero_bubble, "1F1B, TP 3:1, PP 2": UNEVEN}
    found = []
    for kind, model, tokens in (("activations", LONG, 1536), ("state", WIDE, 64)):
        for name, plan in plans.items():
            for recompute in (False, True):
                if kind == "state" and recompute:
                    continue  # there is next to nothing to compute again
                text = f"{kind}; {name}" + ("; recompute" if recompute else "")
                found.append(Case(text, plan, {**model, "recompute": recompute}, tokens))
    return found


def measure(case: Case, *, exact: bool) -> dict[int, int]:
    """Growth in bytes of every worker from hello to its peak. `exact`: of what is allocated, without what the heap
    keeps. Raises `TrialFailed`."""
    with tempfile.TemporaryDirectory(prefix="resihp-memory-") as folder:
        zygote = ZygoteClient(Path(folder), environment={"OMP_NUM_THREADS": "1"} | (EXACT if exact else {}))
        job: TrainerJob | None = None
        try:
            job = TrainerJob(zygote, zygote.store()[1], case.spec, case.plan.world)
            running = job
            pids = {rank: w.pid for rank, w in job.workers.items()}
            before = look_at(pids)
            fresh = set(pids)

            def on_pump() -> None:
                for rank in sorted(fresh):
                    if running.committed(rank):
                        fresh.discard(rank)
                        if rank in running.workers:
                            Path(f"/proc/{pids[rank]}/clear_refs").write_text(_RESET_PEAK)

            job.install(case.plan, "initial")
            job.run(on_pump=on_pump)
            assert not fresh, "an iteration was too short to be looked at"
            return {rank: said.peak_rss_bytes - before[rank].rss_bytes for rank, said in job.all(Finished)}
        finally:
            if job is not None:
                job.close()
            zygote.close()


def limited() -> tuple[Case, Case, int]:
    """One of four devices is lost: the plan without a limit, the plan under a limit that the first one breaks, and that
    limit in bytes."""
    model = ModelSpec(**LONG, vocab_size=256)
    start = plan_initial(Cluster.of(4), model, 1, 2, 2, 6)
    workload = Workload.typical(6, 1536)

    def after(limit: int | None) -> Case:
        cluster = Cluster(tuple(Device(r, "n0", limit) for r in range(4)))
        found = plan_change(start, model, cluster, {3: 0.0}, workload, clock=time.monotonic).plan
        return Case("after a loss" + (f", limit {_mib(limit)} MiB" if limit else ", no limit"), found, LONG, 1536)

    free = after(None)
    limit = int(max(free.foreseen.values()) * 0.85)
    return free, after(limit), limit


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f}"


class Measured:
    """Growth by case, kept in a file if there is one."""

    def __init__(self, kept: Path | None, *, run: bool = True) -> None:
        """`run`: whether what is not in the file is measured; else it is missing."""
        self._kept, self._run = kept, run
        self._grown: dict[str, dict[str, int]] = json.loads(kept.read_text()) if kept and kept.exists() else {}

    def grown(self, case: Case, *, exact: bool) -> dict[int, int]:
        """Empty if it is missing."""
        key = f"{case.name}; {'exact' if exact else 'glibc'}"
        if key not in self._grown and self._run:
            self._grown[key] = {str(rank): size for rank, size in measure(case, exact=exact).items()}
            if self._kept:
                self._kept.write_text(json.dumps(self._grown))
        return {int(rank): size for rank, size in self._grown.get(key, {}).items()}

    def fixed(self, *, exact: bool) -> int:
        """What any worker grows by; 0 if that is missing."""
        return max(0, max(self.grown(TINY, exact=exact).values(), default=0) - max(TINY.foreseen.values()))

    def taken(self, case: Case, *, exact: bool) -> dict[int, int]:
        return {rank: size - self.fixed(exact=exact) for rank, size in self.grown(case, exact=exact).items()}


HEADER = ("case", "foreseen MiB, by rank", "allocated", "of foreseen", "glibc", "glibc beyond foreseen")


def row(case: Case, measured: Measured) -> list[str]:
    """MiB by rank; `-` for what was not measured."""
    foreseen = case.foreseen
    exact, plain = (measured.taken(case, exact=e) for e in (True, False))
    ratios = [exact[rank] / foreseen[rank] for rank in foreseen] if exact else []
    beyond = [plain[rank] - foreseen[rank] for rank in foreseen] if plain else []

    def all_of(sizes: Mapping[int, int]) -> str:
        return " ".join(_mib(sizes[rank]) for rank in sorted(sizes)) or "-"

    spread = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "-"
    rest = f"{_mib(min(beyond))} to {_mib(max(beyond))}" if beyond else "-"
    return [case.name, all_of(foreseen), all_of(exact), spread, all_of(plain), rest]


def main(only: str, kept: Path | None, *, run: bool) -> None:
    measured = Measured(kept, run=run)
    rows = [row(case, measured) for case in cases() if only in case.name]
    free, kept_to, limit = limited()
    obeyed = [row(case, measured) for case in (free, kept_to)]
    facts = {
        **machine(),
        "job": f"float32, {ITERATIONS} iterations of 6 micro-batches (gloo, loopback), snapshots and fingerprints off",
        "activations": f"{LONG}, 1536 tokens per micro-batch",
        "state": f"{WIDE}, 64 tokens per micro-batch",
    }
    fixed = [_mib(measured.fixed(exact=exact)) for exact in (True, False)]
    body = "\n\n".join(
        [
            f"A worker of a tiny model grows by {fixed[0]} MiB (glibc as it comes: {fixed[1]}; 0: not measured) from "
            "its hello to its peak; that is taken off below.",
            table(HEADER, rows),
            f"The planner under a limit of {_mib(limit)} MiB for each device, after the loss of one of four "
            f"(before: PP 2 x DP 2): {describe_plan(free.plan)} without it, {describe_plan(kept_to.plan)} with it.",
            table(HEADER, obeyed),
        ]
    )
    command = "python -m benchmarks.memory"
    print(write("memory", "Memory of workers, foreseen and taken", command, facts, body).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--kept", type=Path, help="a file for what is measured, to go on from")
    parser.add_argument("--render", action="store_true", help="measure nothing: only what is kept")
    given = parser.parse_args()
    main(given.only, given.kept, run=not given.render)
