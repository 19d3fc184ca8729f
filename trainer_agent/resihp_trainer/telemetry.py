"""What a rank reports beyond the sums of an iteration: seconds of each unit, fingerprints of its state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from resihp_messages import JobSpec
from resihp_plan import Bucket, OpKind, group_name
from resihp_plan.groups import GroupKind
from resihp_trainer.install import ActiveEpoch
from resihp_trainer.interpreter import BACKWARD_KINDS
from resihp_trainer.iteration import Step
from resihp_trainer.shards import ShardSet

_DIGEST_BYTES = 8


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
        "fingerprints": fingerprints(active.held, active.buckets) if due else {},
        "virtual_clock": spec.clock.virtual,
    }


def fingerprints(held: ShardSet, buckets: Sequence[Bucket]) -> dict[str, str]:
    """Name of each shared bucket of this rank -> digest of the parameters and moments of its slices.

    The owners of a bucket hold the same bits, whatever the layouts of their replicas, so their digests are equal: what
    differs has silently diverged.
    """
    found = {}
    for bucket in buckets:
        if not bucket.is_shared:
            continue
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for p in bucket.pieces:
            for tensor in held.shards[p.tensor].state:
                digest.update(held.piece(p.tensor, tensor, p.start, p.stop).contiguous().numpy().data)
        found[group_name(GroupKind.BUCKET, bucket.owners)] = digest.hexdigest()
    return found
