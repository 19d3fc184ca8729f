"""What the REST interface answers: one typed model per resource. Not-a-number never reaches a client (it becomes null).

Durations are seconds and end in `_s`; times of day are UTC and end in `_at`.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue


def _finite(value: Any) -> Any:
    """NaN and infinities -> None, at any depth: JSON has no word for them and browsers refuse to parse them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


Number = Annotated[float | None, BeforeValidator(_finite)]
Json = Annotated[JsonValue, BeforeValidator(_finite)]
Document = Annotated[dict[str, JsonValue], BeforeValidator(_finite)]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True, extra="ignore")


class Position(_View):
    """Place in the current plan; shown to people as `R1·S0·T1`."""

    replica: int
    stage: int
    tp_index: int


class JobView(_View):
    """One training job."""

    job: str
    state: str
    """submitted, starting, running, finished, failed, stopped."""
    reason: str = ""
    epoch: int
    """Newest plan epoch in force."""
    plan_digest: str | None = None
    iterations: int
    """Iterations asked for."""
    committed: int
    """Iterations committed, as far as reported."""
    samples_expected: int | None = None
    samples_once: int | None = None
    final_loss: Number = None
    submitted_at: datetime | None = None
    finished_at: datetime | None = None
    spec: Document = Field(default_factory=dict)


class DeviceView(_View):
    """One device of a job: the record, joined with the newest beat of its node if there is one."""

    rank: int
    node: str
    slot: int
    state: str
    """starting, healthy, standby, lost, returning, finished."""
    p: float
    """Throughput relative to its own healthy peak; 0 is fail-stop."""
    pid: int | None = None
    start: int = 0
    """How many workers the rank had before its present one."""
    position: Position | None = None
    worker_state: str | None = None
    """From the newest beat: starting, waiting, rebuilding, moving, training, finishing, standby, stopped."""
    live_pid: int | None = None
    """Process id in the newest beat: what runs now, whatever the record says."""
    iteration: int | None = None
    silent_s: Number = None
    beat_age_s: Number = None


class IncidentView(_View):
    """One fault from first suspicion to repair; evidence, verdict and decision stay apart."""

    id: str
    job: str
    kind: str
    ranks: tuple[int, ...]
    node: str
    evidence: Document
    verdict: Document
    advice: str = ""
    resolution: str = ""
    opened_at: datetime
    closed_at: datetime | None = None


class ReconfigurationView(_View):
    """One change from an epoch to the next."""

    id: str
    job: str
    incident_id: str | None = None
    mode: str
    status: str
    """planned, applied, rejected, superseded."""
    reason: str
    difference: str = ""
    old_epoch: int
    new_epoch: int
    old_digest: str
    new_digest: str
    alternatives: Json = None
    """Plans that were considered: name, predicted tokens/s, why it lost."""
    phases_s: dict[str, Number] = Field(default_factory=dict)
    """detect, plan, abort, rebuild, move, redo, total."""
    bytes_moved: int | None = None
    proof: dict[str, bool] = Field(default_factory=dict)
    outcome: str = ""
    bound_tokens_per_s: Number = None
    """Healthy throughput times the share of devices that are left: no plan can be faster."""
    predicted_tokens_per_s: Number = None
    achieved_tokens_per_s: Number = None
    created_at: datetime
    applied_at: datetime | None = None


class PlanView(_View):
    """One version of a job's plan."""

    epoch: int
    digest: str
    plan: Document
    predicted_tokens_per_s: Number = None


class IterationView(_View):
    """One committed iteration."""

    iteration: int
    epoch: int
    loss: Number = None
    step_s: Number
    """Slowest rank."""
    tokens: int
    """Tokens of the global batch."""
    samples_expected: int
    samples_once: int
    rss_bytes: int | None = None


class EventView(_View):
    """One event, as stored and as streamed."""

    sequence: int
    message_id: str
    name: str
    job: str
    epoch: int
    source: str
    correlation_id: str = ""
    occurred_at: datetime
    body: Document


class FaultRequest(BaseModel):
    """Inflict a fault on a device (testing)."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"rank": 3, "fault": "kill"}]})

    rank: Annotated[int, Field(ge=0, lt=1_000_000)]
    fault: Literal["kill", "freeze", "slow"]
    factor: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Only `slow`: speed from then on, relative to the healthy device. The job's clock must be virtual."""
    for_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Only `slow`: for how long; 0 means for good."""


class RestartRequest(BaseModel):
    """Start the worker of a lost rank again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"rank": 3}]})

    rank: Annotated[int, Field(ge=0, lt=1_000_000)]


class PlanRequest(BaseModel):
    """Switch the job to this plan, live. Its epoch is assigned by the scheduler."""

    model_config = ConfigDict(extra="forbid")

    plan: dict[str, JsonValue]
    reason: Annotated[str, Field(max_length=4096)] = "operator"


class StopRequest(BaseModel):
    """Stop the job."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=4096)] = "operator"


class Accepted(BaseModel):
    """The scheduler has committed the change; its effects follow as events."""

    job: str
    reconfiguration_id: str | None = None


class Problem(BaseModel):
    """RFC 9457 problem details (`application/problem+json`)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str = ""
