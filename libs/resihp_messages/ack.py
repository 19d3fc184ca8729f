"""Acknowledgements: what an agent says about a command, and how far its ranks have come. Columnar over ranks."""

from __future__ import annotations

from typing import ClassVar

from resihp_messages.envelope import Body, Kind
from resihp_messages.ids import Count, Digest, Finite, RankField, Seconds, StateSource, Text, Token


class _Ack(Body):
    kind: ClassVar[Kind] = Kind.ACK

    node: Token


class WorkersStarted(_Ack):
    """All asked-for workers of the node said hello."""

    schema_name: ClassVar[str] = "WorkersStarted.v1"

    ranks: tuple[RankField, ...]
    pids: tuple[Count, ...]


class PlanPrepared(_Ack):
    """Every local rank of the plan holds it (it is switched to by the vote, not by this message)."""

    schema_name: ClassVar[str] = "PlanPrepared.v1"

    reconfiguration_id: Token
    digest: Digest
    ranks: tuple[RankField, ...]


class PlanApplied(_Ack):
    """Every local rank of the plan has rebuilt its groups and holds its verified shards."""

    schema_name: ClassVar[str] = "PlanApplied.v1"

    reconfiguration_id: Token
    digest: Digest
    ranks: tuple[RankField, ...]
    abort_s: tuple[Seconds, ...]
    """From the agent's notice of the fault to the rank's return from its aborted operation; 0 for planned changes."""
    rebuild_s: tuple[Seconds, ...]
    move_s: tuple[Seconds, ...]
    bytes_received: tuple[Count, ...]
    committed: Count
    """Iterations committed when the new epoch starts: the same number on every rank."""
    digests_equal: bool
    """Every moved interval had the same digest on both sides."""
    plan_s: Seconds | None = None
    """From this agent's notice of the fault to its receipt of the command (planned changes: 0). None: not measured."""
    lost_iterations: Count = 0
    """Committed iterations that all ranks gave up together, because nobody alive holds their state."""
    state_source: StateSource = "live"


class IterationResumed(_Ack):
    """The first iteration of the epoch is committed on every local rank."""

    schema_name: ClassVar[str] = "IterationResumed.v1"

    reconfiguration_id: Token
    iteration: Count
    ranks: tuple[RankField, ...]
    redo_s: tuple[Seconds, ...]
    """From the end of the state move to the commit."""
    since_notice_s: Seconds
    """From this agent's notice of the fault (or receipt of the planned command) to the last local commit."""
    samples_expected: Count
    samples_once: Count


class PlanRejected(_Ack):
    """The command was refused; nothing changed."""

    schema_name: ClassVar[str] = "PlanRejected.v1"

    reconfiguration_id: Token
    reason: Text


class ValidationResult(_Ack):
    """Probes of `ValidateDevices` on one rank."""

    schema_name: ClassVar[str] = "ValidationResult.v1"

    validation_id: Token
    rank: RankField
    asked: tuple[RankField, ...]
    """Everybody who was asked to compute: the validation is over when all have answered."""
    compute_s: Seconds
    """Shortest of some repetitions of the matrix product; 0: not asked of this rank."""
    link_s: dict[str, Seconds]
    """`sender>receiver` -> shortest transfer, as this end saw it."""
    iteration: Count
    virtual_clock: bool = False


class WorkerFinished(_Ack):
    """A rank has committed the last iteration, written its shards and is about to exit with status 0."""

    schema_name: ClassVar[str] = "WorkerFinished.v1"

    rank: RankField
    committed: Count
    samples_expected: Count
    samples_once: Count
    final_loss: Finite | None
    peak_rss_bytes: Count
    shards_file: Text = ""


class WorkerFailed(_Ack):
    """A rank cannot go on by its own fault (bad data, not-finite loss, programming error); the job must stop."""

    schema_name: ClassVar[str] = "WorkerFailed.v1"

    rank: RankField
    error: Text
