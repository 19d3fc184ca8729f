"""`python -m resihp_trainer.verify`: compare the shards of a finished job with the undisturbed run.

Progress goes to stderr, the answer to stdout (JSON with `--json`). Exit codes: 0 compared, 2 for input that cannot be
compared (one line on stderr). Whether a difference is small enough is for the caller to say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from resihp_messages import JobSpec
from resihp_plan import ParallelPlan
from resihp_trainer.reference import model_of, train_reference
from resihp_trainer.result import PLAN_FILE, Assembled, assemble


@dataclass(frozen=True)
class Comparison:
    """How far a job's parameters are from those of the undisturbed run of the same seed."""

    max_abs_diff: float
    """Over all elements of all tensors; the largest over the replicas."""
    worst_tensor: str
    replicas_equal: bool
    """Every replica has the same bits."""
    num_replicas: int
    num_parameters: int
    committed: int
    dtype: str
    reference_loss: float
    """Mean loss of the undisturbed run's last iteration, nats per token."""


def compare(spec: JobSpec, found: Assembled) -> Comparison:
    """Train the reference (progress on stderr) and compare. Raises ValueError if the job is incomplete."""
    if found.committed != spec.iterations:
        raise ValueError(f"the job committed {found.committed} of {spec.iterations} iterations")
    reference = train_reference(spec, lambda k, loss: _note(f"reference {k}/{spec.iterations} loss {loss:.4f}"))
    worst, difference = "", 0.0
    for name, parameter in reference.held.parameters.items():
        for replica in found.replicas:
            # NaN means that no shard covered an element: then there is no agreement.
            here = float((replica[name] - parameter).abs().nan_to_num(nan=float("inf")).max())
            if here > difference or not worst:
                worst, difference = name, here
    return Comparison(
        max_abs_diff=difference,
        worst_tensor=worst,
        replicas_equal=found.are_equal,
        num_replicas=len(found.replicas),
        num_parameters=sum(p.numel() for p in reference.held.parameters.values()),
        committed=found.committed,
        dtype=spec.dtype,
        reference_loss=reference.losses[-1],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m resihp_trainer.verify", description=__doc__.split("\n")[0])
    parser.add_argument("--spec", type=Path, required=True, help="the job (JSON of JobSpec)")
    parser.add_argument("--final", type=Path, required=True, help="folder of the last epoch's shards")
    parser.add_argument("--plan", type=Path, help="the last epoch's plan (JSON; default: the one among the shards)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # as in the workers; small operators on a busy machine lose by more
    try:
        spec = JobSpec.model_validate_json(options.spec.read_bytes())
        plan = ParallelPlan.from_dict(json.loads((options.plan or options.final / PLAN_FILE).read_bytes()))
        found = compare(spec, assemble(options.final, plan, model_of(spec)))
    except ValidationError as error:
        _note(f"{options.spec}: {error.errors(include_url=False)[0]['msg']}")
        return 2
    except (OSError, ValueError) as error:
        _note(str(error))
        return 2
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        print(f"largest difference: {found.max_abs_diff:.3g} in {found.worst_tensor}")
        print(f"replicas equal bit by bit: {'yes' if found.replicas_equal else 'no'}")
    return 0


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
