"""What reads return: frozen values, one class per table. Times of day are aware UTC datetimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

Json = Mapping[str, Any]


class JobState(StrEnum):
    SUBMITTED = "submitted"
    """Waits for free slots."""
    STARTING = "starting"
    """Slots are dealt, workers are being started."""
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        return self in (JobState.FINISHED, JobState.FAILED, JobState.STOPPED)


class DeviceState(StrEnum):
    STARTING = "starting"
    HEALTHY = "healthy"
    STANDBY = "standby"
    """Healthy, without work in the current plan."""
    FINISHED = "finished"
    LOST = "lost"
    RETURNING = "returning"
    """It was lost; its worker is being started again and is in no plan yet."""

    @property
    def alive(self) -> bool:
        """Whether it can be in a plan."""
        return self not in (DeviceState.LOST, DeviceState.RETURNING)


class NodeState(StrEnum):
    UP = "up"
    LEFT = "left"
    LOST = "lost"


class ReconfigurationStatus(StrEnum):
    PLANNED = "planned"
    APPLIED = "applied"
    REJECTED = "rejected"
    SUPERSEDED = "superseded"


@dataclass(frozen=True)
class JobRecord:
    job: str
    state: JobState
    reason: str
    spec: Json
    """`resihp_messages.JobSpec` as JSON."""
    epoch: int
    """Newest plan epoch that all its ranks installed; 0 before the first."""
    plan_digest: str | None
    iterations: int
    """Iterations asked for."""
    committed: int
    samples_expected: int | None
    samples_once: int | None
    final_loss: float | None
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True)
class NodeRecord:
    node: str
    incarnation: str
    host: str
    comm_host: str
    num_slots: int
    store_address: str
    state: NodeState
    joined_at: datetime
    changed_at: datetime


@dataclass(frozen=True)
class DeviceRecord:
    job: str
    rank: int
    node: str
    slot: int
    incarnation: str
    """Of the node's agent when the slot was dealt."""
    state: DeviceState
    pid: int | None
    result: Json | None
    """The `WorkerFinished` body of a finished rank (`committed`, `samples_once`, `peak_rss_bytes`, ...)."""
    changed_at: datetime
    start: int = 0
    """How many workers the rank had before its present one."""
    p: float = 1.0
    """Speed relative to its healthy self, as the scheduler plans with it. Of a lost device: before it was lost."""


@dataclass(frozen=True)
class PlanRecord:
    job: str
    epoch: int
    digest: str
    plan: Json
    """`resihp_plan.ParallelPlan.to_dict()`."""
    predicted_tokens_per_s: float | None
    created_at: datetime
    installed_at: datetime | None
    """When it was known that every rank of its world holds its verified shards."""


@dataclass(frozen=True)
class IncidentRecord:
    id: str
    job: str
    kind: str
    """As `Verdict.fault`: worker_lost, worker_frozen, node_lost, link_broken, device_slow."""
    ranks: tuple[int, ...]
    node: str
    evidence: Json
    verdict: Json
    advice: str
    resolution: str
    correlation_id: str
    message_id: str
    """Of the verdict."""
    opened_at: datetime
    closed_at: datetime | None


@dataclass(frozen=True)
class ReconfigurationRecord:
    id: str
    job: str
    incident_id: str | None
    mode: str
    """initial, recovery or planned."""
    status: ReconfigurationStatus
    attempt: int
    old_epoch: int
    new_epoch: int
    old_digest: str
    """Empty for the initial plan."""
    new_digest: str
    reason: str
    difference: str
    alternatives: tuple[Json, ...]
    """Plans that were considered: `name`, `predicted_tokens_per_s`, `reason` why it lost."""
    phases_s: Mapping[str, float]
    """detect, plan, abort, rebuild, move, redo, total."""
    proof: Mapping[str, bool]
    bytes_moved: int | None
    bound_tokens_per_s: float | None
    """Healthy throughput times the share of devices that are left: no plan can be faster."""
    predicted_tokens_per_s: float | None
    achieved_tokens_per_s: float | None
    """Median over the iterations of the new epoch after the first one."""
    correlation_id: str
    outcome: str
    created_at: datetime
    applied_at: datetime | None
    closed_at: datetime | None
    lost_iterations: int = 0
    """Committed iterations that were given up, because all holders of a part of their state died."""
    state_source: str = "live"
    """Where the state came from: live, snapshot, checkpoint."""
    predicted_by: str = ""
    """constants: by those measured on the job; pace: by nominal ones, scaled to what the job achieved before; nominal.
    Empty: not known, or nothing was predicted."""
    speed_share: float | None = None
    """What was left of the devices' speed: the bound is this share of the healthy throughput."""

    @property
    def open(self) -> bool:
        return self.status is ReconfigurationStatus.PLANNED


@dataclass(frozen=True)
class AckRecord:
    reconfiguration_id: str
    node: str
    name: str
    """Schema name without its version."""
    body: Json


@dataclass(frozen=True)
class EventRecord:
    sequence: int
    """Place in the database's own log (not the sequence of the event stream)."""
    message_id: str
    job: str
    epoch: int
    name: str
    source: str
    correlation_id: str
    occurred_at: datetime
    body: Json


@dataclass(frozen=True)
class IterationRecord:
    """One committed iteration, over all nodes."""

    job: str
    iteration: int
    epoch: int
    loss: float | None
    step_s: float
    """Slowest rank."""
    tokens: int
    samples_expected: int
    samples_once: int
    rss_bytes: int | None = None
    """Largest rank."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.step_s if self.step_s > 0 else 0.0


@dataclass(frozen=True)
class OutgoingMessage:
    """A row of the outbox."""

    id: int
    message_id: str
    job: str
    kind: str
    detail: str
    payload: bytes = field(repr=False)


@dataclass(frozen=True)
class LeaseRecord:
    holder: str
    token: int
    remaining_s: float
    """On the database's clock; negative when it has expired."""
