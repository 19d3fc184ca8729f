"""Decided by the scheduler, and what became of it. Only the scheduler says them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from resihp_messages.event.base import _Event
from resihp_messages.ids import Count, Digest, Finite, JsonObject, RankField, Seconds, StateSource, Text, Token


class JobSubmitted(_Event):
    """A job was accepted and recorded."""

    schema_name: ClassVar[str] = "JobSubmitted.v1"

    spec: JsonObject


class JobStarted(_Event):
    """Every rank runs the first plan."""

    schema_name: ClassVar[str] = "JobStarted.v1"

    plan_digest: Digest
    ranks: tuple[RankField, ...]


class ReconfigurationPlanned(_Event):
    """A new plan was decided and its commands are on their way."""

    schema_name: ClassVar[str] = "ReconfigurationPlanned.v1"

    reconfiguration_id: Token
    reason: Text
    mode: Literal["recovery", "planned"]
    old_digest: Digest
    new_digest: Digest
    difference: Text
    """The change in words: `R1.S0 TP 2 -> 1; micro-batches 4+4 -> 5+3`."""
    plan_s: Seconds
    predicted_tokens_per_s: Finite


class ReconfigurationApplied(_Event):
    """All ranks run the new plan and its first iteration is committed."""

    schema_name: ClassVar[str] = "ReconfigurationApplied.v1"

    reconfiguration_id: Token
    new_digest: Digest
    phases_s: dict[str, Seconds]
    """detect, plan, abort, rebuild, move, redo, total."""
    bytes_moved: Count
    proof: dict[str, bool]
    """Checks that must all be true: layers_complete, samples_once, digests_equal, plan_digest_equal."""
    lost_iterations: Count = 0
    """Committed iterations that were given up and are done again, because all holders of a part of their state died."""
    state_source: StateSource = "live"


class ReconfigurationRejected(_Event):
    """A new plan was refused by an agent or a worker; the old one stays."""

    schema_name: ClassVar[str] = "ReconfigurationRejected.v1"

    reconfiguration_id: Token
    reason: Text


class ReconfigurationSuperseded(_Event):
    """A newer reconfiguration took the place of one that was not finished."""

    schema_name: ClassVar[str] = "ReconfigurationSuperseded.v1"

    reconfiguration_id: Token
    by_reconfiguration_id: Token
    reason: Text


class DecisionMade(_Event):
    """The scheduler weighed a change that nobody has to make at once: what it does, and why not something else."""

    schema_name: ClassVar[str] = "DecisionMade.v1"

    decision_id: Token
    trigger: Text
    """What made it think: `rank 5 slow (p 0.50)`, `rank 3 returned`."""
    action: Literal["act", "advise", "wait", "stay"]
    """The plan is on its way, would be in another mode, may be later, or there is none that is worth it."""
    reason: Text
    difference: Text = ""
    predicted_tokens_per_s: Finite | None = None
    """With the best plan."""
    stay_tokens_per_s: Finite | None = None
    """With the plan in force."""
    bound_tokens_per_s: Finite | None = None
    again_in_s: Seconds | None = None
    """`wait`: when it is weighed again at the latest."""


class DecisionClosed(_Event):
    """Advice or a wait is over: acted on, approved, vetoed, or overtaken by events."""

    schema_name: ClassVar[str] = "DecisionClosed.v1"

    decision_id: Token
    outcome: Literal["acted", "approved", "vetoed", "superseded"]
    reason: Text = ""


class ModeChanged(_Event):
    """An operator, or the breaker, changed what the scheduler may do on its own."""

    schema_name: ClassVar[str] = "ModeChanged.v1"

    mode: Literal["act", "advise", "off"]
    held: bool = False
    """No change that can wait is made for `hold_s`, or (None) until the hold is lifted."""
    hold_s: Seconds | None = None
    breaker_tripped: bool = False
    evicted: tuple[RankField, ...] = ()
    """Devices that are not to be used."""
    thresholds: dict[str, Finite] = Field(default_factory=dict)
    """Those that differ from their defaults."""
    reason: Text = ""


class JobFinished(_Event):
    """Every rank has committed the last iteration."""

    schema_name: ClassVar[str] = "JobFinished.v1"

    iterations: Count
    committed: Count
    samples_expected: Count
    samples_once: Count
    final_loss: Finite | None


class JobFailed(_Event):
    """The job ended before its last iteration."""

    schema_name: ClassVar[str] = "JobFailed.v1"

    reason: Text
