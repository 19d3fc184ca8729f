"""What can be checked on a machine with one GPU, in about three minutes. Nothing of it has been run so far.

    .venv/bin/python scripts/gpu_check.py

1. A job of one worker on the GPU (`backend = "nccl"`): it ends, and its losses are those of the CPU.
2. A rebuild: a planned change to another schedule in the middle of it, state kept on the device, losses still equal.
3. Telemetry: the seconds of its segments, timed by events, fill the iteration that the host timed.
4. NCCL itself, as far as one GPU goes (two ranks on one GPU are refused by NCCL): communicators of one rank are
   created from the store's keys, reduce, are aborted together, and are created anew for the next epoch.

Exit status 0 if everything holds. Needs a CUDA build of torch; says so otherwise (status 2). `--rehearse` runs the job
of checks 1 to 3 small and with gloo: that shows that the script works, and nothing about a GPU.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch._C._distributed_c10d import HashStore, PrefixStore

from resihp_messages import JobSpec
from resihp_messages.link import IterationCommitted, PlanInstalled
from resihp_plan import Schedule
from resihp_trainer.comm.nccl import nccl_backend
from resihp_trainer.reference import single_device_plan, train_reference
from resihp_trainer.trials import outcome as trials
from resihp_trainer.trials.trainer_job import TrainerJob
from resihp_trainer.trials.zygote_client import ZygoteClient

ITERATIONS = 12
TOLERANCE = 2e-3
"""Of a mean loss in float32 after a few iterations: other kernels, other order of sums."""
SPEC = JobSpec.model_validate(
    {
        "name": "gpu-check",
        "iterations": ITERATIONS,
        "backend": "nccl",
        "model": {"num_layers": 6, "hidden": 512, "num_heads": 8, "num_kv_heads": 4, "ffn_hidden": 1408},
        "parallel": {"tp": 1, "pp": 1, "dp": 1},
        "batch": {"micro_batches": 4, "tokens_per_micro_batch": 1024},
        "snapshots": {"every": 0},
    }
)


REHEARSAL = JobSpec.model_validate(
    SPEC.model_dump() | {"backend": "gloo", "model": trials.MODEL, "batch": trials.BATCH}
)


def job_and_rebuild(spec: JobSpec = SPEC) -> list[str]:
    """Checks 1 to 3; the lines of the report. Raises AssertionError or `TrialFailed`."""
    first = single_device_plan(spec).with_epoch(1)
    second = dataclasses.replace(first.with_epoch(2), schedule=Schedule.ZB_H1)
    with tempfile.TemporaryDirectory(prefix="resihp-gpu-") as folder:
        zygote = ZygoteClient(Path(folder))
        job: TrainerJob | None = None
        try:
            job = TrainerJob(zygote, zygote.store()[1], spec, [0])
            running = job

            def on_pump() -> None:
                if running.committed(0) >= ITERATIONS // 2 and len(running.plans) == 1:
                    running.install(second, "planned")

            job.install(first, "initial")
            job.run(on_pump=on_pump)
            steps = [f for _, f in job.all(IterationCommitted)]
            installed = [f for _, f in job.all(PlanInstalled)]
        finally:
            if job is not None:
                job.close()
            zygote.close()
    assert [f.epoch for f in installed] == [1, 2], installed
    expected = train_reference(spec.model_copy(update={"backend": "gloo"})).losses
    losses = [step.loss for step in steps]
    worst = max(abs((a if a is not None else float("nan")) - b) for a, b in zip(losses, expected, strict=True))
    assert worst <= TOLERANCE, (losses, expected)
    shares = [(s.forward_s + s.backward_s) / s.step_s for s in steps[2:]]
    share = statistics.median(shares)
    assert 0.05 < share <= 1.02, shares
    rebuild = installed[1]
    return [
        f"job of one worker: {len(steps)} iterations, losses within {worst:.1e} of the CPU's",
        f"change of plan: rebuild {rebuild.rebuild_s * 1e3:.1f} ms, move {rebuild.move_s * 1e3:.1f} ms",
        f"telemetry: segments timed by events are {share:.0%} of the iteration (median), never more than all of it",
    ]


def communicators() -> list[str]:
    """Check 4. Raises AssertionError or RuntimeError."""
    device = torch.device("cuda", 0)
    store = HashStore()
    lines = []
    for epoch in (1, 2):
        start = time.monotonic()
        backends = [nccl_backend(PrefixStore(f"e{epoch}/{name}", store), 0, 1, 30.0) for name in ("tp", "bucket")]
        for backend in backends:
            backend.eager_connect_single_device(device)
        values = torch.full((1 << 20,), 2.0, device=device)
        for backend in backends:
            backend.allreduce([values]).wait()
        assert float(values.sum()) == 2.0 * (1 << 20)
        created = time.monotonic() - start
        start = time.monotonic()
        backends[0]._group_start()
        for backend in backends:
            backend.abort()
        backends[0]._group_end()
        lines.append(f"epoch {epoch}: two communicators {created * 1e3:.0f} ms with their first operation, "
                     f"aborted together in {(time.monotonic() - start) * 1e3:.0f} ms")  # fmt: skip
    return lines


def main() -> int:
    if "--rehearse" in sys.argv[1:]:
        print("a rehearsal with gloo; no GPU takes part", *job_and_rebuild(REHEARSAL), sep="\n")
        return 0
    if not torch.cuda.is_available():
        print("gpu_check: this build of torch sees no GPU on this machine", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name(0)}")
    failed = 0
    checks: tuple[Callable[[], list[str]], ...] = (communicators, job_and_rebuild)
    for check in checks:
        try:
            print(*check(), sep="\n")
        except Exception as error:  # the script's border: every check is tried
            failed += 1
            print(f"{check.__name__} FAILED: {type(error).__name__}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
