"""What a rank reports beyond the sums of an iteration: seconds of each unit, fingerprints of its state."""

from __future__ import annotations

from typing import Any

from resihp_messages import JobSpec
from resihp_plan import OpKind
from resihp_trainer.install import ActiveEpoch
from resihp_trainer.interpreter import BACKWARD_KINDS
from resihp_trainer.iteration import Step


def telemetry(spec: JobSpec, active: ActiveEpoch, step: Step) -> dict[str, Any]:
    """The optional fields of `IterationCommitted`, after the commit of `step`."""
    work, every = step.work, spec.telemetry.fingerprint_every
    due = every > 0 and step.outcome.iteration % every == 0
    return {
        "unit_tokens": tuple(s.tokens for s in work.forwards),
        "unit_sum_sq_len": tuple(s.sum_sq_len for s in work.forwards),
        "unit_forward_s": work.by_unit(OpKind.FORWARD),
        "unit_backward_s": work.by_unit(*BACKWARD_KINDS),
        "unit_weight_s": work.by_unit(OpKind.BACKWARD_WEIGHT),
        "fingerprints": active.fingerprints.take() if due else {},
        "virtual_clock": spec.clock.virtual,
        "link_wait_s": active.interpreter.take_links() if active.interpreter is not None else {},
        "processor_time": spec.backend == "gloo" and not spec.clock.virtual and active.interpreter is not None,
    }
