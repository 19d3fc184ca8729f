"""What a rank reports of its work in an iteration: seconds of each unit and their sums, fingerprints of its state."""

from __future__ import annotations

from typing import Any

from resihp_messages import JobSpec
from resihp_trainer.digests import is_fingerprinted
from resihp_trainer.dispute import Disputed
from resihp_trainer.install import ActiveEpoch
from resihp_trainer.iteration import Step


def telemetry(
    spec: JobSpec, active: ActiveEpoch, step: Step, *, first_of_epoch: bool, disputed: Disputed | None
) -> dict[str, Any]:
    """These fields of `IterationCommitted`, after the commit of `step`. `disputed`: what the state was when this
    iteration was committed before."""
    columns, every = step.work.columns(), spec.telemetry.fingerprint_every
    prints = active.fingerprints
    due = is_fingerprinted(step.outcome.iteration, every, first_of_epoch=first_of_epoch) or disputed is not None
    return {
        "forward_s": sum(columns.forward_s.values()),
        "backward_s": sum(columns.backward_s.values()),
        "tokens": sum(columns.tokens),
        "sum_sq_len": sum(columns.sum_sq_len),
        "unit_tokens": tuple(columns.tokens),
        "unit_sum_sq_len": tuple(columns.sum_sq_len),
        "unit_forward_s": tuple(columns.forward_s.values()),
        "unit_backward_s": columns.in_order(columns.backward_s),
        "unit_weight_s": columns.in_order(columns.weight_s),
        "fingerprints": prints.take() if due else {},
        "distances": disputed.distances(active.held, prints, active.buckets) if disputed is not None else {},
        "virtual_clock": spec.clock.virtual,
        "link_wait_s": active.interpreter.take_links() if active.interpreter is not None else {},
        "processor_time": spec.backend == "gloo" and not spec.clock.virtual and active.interpreter is not None,
    }
