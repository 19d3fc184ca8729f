"""What a sequence came to: compared with the undisturbed run of the same seed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from resihp_messages import JobSpec
from resihp_messages.link import Finished, PlanInstalled
from resihp_trainer.data import documents
from resihp_trainer.reference import corpus_of, model_of, train_reference
from resihp_trainer.result import assemble
from resihp_trainer.trials.script import Script
from resihp_trainer.trials.sequence import Sequence
from resihp_trainer.trials.trainer_job import TrainerJob, TrialFailed, result_folder
from resihp_trainer.trials.zygote_client import ZygoteClient

MODEL = {"num_layers": 4, "hidden": 32, "num_heads": 8, "num_kv_heads": 4, "ffn_hidden": 96, "vocab_size": 256}
BATCH = {"micro_batches": 4, "tokens_per_micro_batch": 48}
"""So small that an iteration is mostly communication: what is tried is the protocol."""


@dataclass(frozen=True)
class Outcome:
    """`error` is empty if the job came to its end and everything could be compared."""

    index: int
    script: str
    log: tuple[str, ...]
    """Every plan and death, with the newest committed iteration in front."""
    seconds: float
    max_abs_diff: float | None
    """From the parameters of the undisturbed run, over all tensors and replicas; None if nothing could be compared."""
    replicas_equal: bool
    samples_expected: int
    samples_once: int
    epochs: int
    """Plans that came into use."""
    deaths: int
    lost_iterations: int
    """Committed ones that were given up for a snapshot, and made again."""
    skipped: int
    """Deaths and changes of the script for which the job ended too early."""
    error: str

    def holds(self, limit: float) -> bool:
        """Whether the sequence kept every promise."""
        return (
            not self.error
            and self.max_abs_diff is not None
            and self.max_abs_diff <= limit
            and self.replicas_equal
            and self.samples_once == self.samples_expected > 0
        )


def job_of(script: Script, dtype: str, output: Path) -> JobSpec:
    """A small job with the script's faults."""
    # The degrees only have to admit the fault's ranks: the plans are the sequence's own.
    parallel = {"tp": 2, "pp": 2, "dp": math.ceil(script.num_ranks / 4)}
    return JobSpec.model_validate(
        {
            "name": f"trial-{script.index}",
            "seed": script.index,
            "iterations": script.iterations,
            "dtype": dtype,
            "model": MODEL,
            "batch": BATCH,
            "parallel": parallel,
            "faults": script.faults,
            "output_dir": str(output),
        }
    )


def run_script(zygote: ZygoteClient, store: str, script: Script, dtype: str, output: Path) -> Outcome:
    """Run one sequence to its end and compare. What goes wrong is in the outcome, never raised."""
    began_s = time.monotonic()
    spec = job_of(script, dtype, output)
    job: TrainerJob | None = None
    sequence: Sequence | None = None
    difference, equal, expected, once, error = None, False, 0, 0, ""
    try:
        job = TrainerJob(zygote, store, spec, range(script.num_ranks))
        sequence = Sequence(job, model_of(spec), script)
        sequence.run()
        expected, once = _samples(job)
        difference, equal = _compare(job)
    except (TrialFailed, ValueError, TimeoutError) as failure:
        error = str(failure)
    finally:
        if job is not None:
            job.close()
    return Outcome(
        index=script.index,
        script=str(script),
        log=tuple(sequence.log) if sequence else (),
        seconds=time.monotonic() - began_s,
        max_abs_diff=difference,
        replicas_equal=equal,
        samples_expected=expected,
        samples_once=once,
        epochs=len({f.epoch for _, f in job.all(PlanInstalled)}) if job else 0,
        deaths=len(sequence.deaths) if sequence else 0,
        lost_iterations=_given_up(job) if job else 0,
        skipped=sequence.skipped if sequence else 0,
        error=error,
    )


def _given_up(job: TrainerJob) -> int:
    by_epoch = {f.epoch: f.lost_iterations for _, f in job.all(PlanInstalled)}
    return sum(by_epoch.values())


def _samples(job: TrainerJob) -> tuple[int, int]:
    """Documents of all iterations, and how many the votes counted exactly once. Raises `TrialFailed`."""
    spec, corpus = job.spec, corpus_of(job.spec)
    iterations = range(1, spec.iterations + 1)
    expected = sum(len(documents(corpus, spec.batch, spec.seed, k).documents) for k in iterations)
    said = {rank: f for rank, f in job.all(Finished) if rank in job.last_plan.world}
    if set(said) != set(job.last_plan.world):
        raise TrialFailed(f"ranks {sorted(set(job.last_plan.world) - set(said))} did not finish")
    if {f.committed for f in said.values()} != {spec.iterations}:
        raise TrialFailed(f"not every rank committed {spec.iterations} iterations: {said}")
    return expected, min(f.samples_once for f in said.values())


def _compare(job: TrainerJob) -> tuple[float, bool]:
    """Largest difference from the reference, and whether the replicas are equal bit by bit. Raises ValueError."""
    found = assemble(result_folder(job), job.last_plan, model_of(job.spec))
    reference = train_reference(job.spec).held.parameters
    # NaN means that no shard covered an element: then there is no agreement.
    return max(
        float((whole[name] - parameter).abs().nan_to_num(nan=torch.inf).max())
        for whole in found.replicas
        for name, parameter in reference.items()
    ), found.are_equal
