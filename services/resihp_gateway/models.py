"""What the REST interface answers: one typed model per resource. Not-a-number never reaches a client (it becomes null).

Durations are seconds and end in `_s`; times of day are UTC and end in `_at`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, computed_field
from pydantic_core import to_jsonable_python

from resihp_messages.job import ENDLESS


def _finite(value: Any) -> Any:
    """NaN and infinities -> None, at any depth: JSON has no word for them and browsers refuse to parse them."""
    return to_jsonable_python(value, inf_nan_mode="null")


Number = Annotated[float | None, BeforeValidator(_finite)]
Json = Annotated[Any, BeforeValidator(_finite)]
"""Is JSON by then; lists hold many kilobytes of it, so it is not looked through once more."""
Document = Annotated[dict[str, Any], BeforeValidator(_finite)]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True, extra="ignore")


class Position(_View):
    """Place in the current plan; shown to people as `R1·S0·T1`."""

    replica: int
    stage: int
    tp_index: int


class HeldOutLoss(_View):
    """The newest evaluation of a job on text that is not trained on."""

    iteration: int
    loss: Number = None


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
    held_out: HeldOutLoss | None = None
    submitted_at: datetime | None = None
    finished_at: datetime | None = None
    spec: Document = Field(default_factory=dict)

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own way to publish a property
    @property
    def endless(self) -> bool:
        """Nobody has said how many iterations there will be (a job of another launcher)."""
        return self.iterations >= ENDLESS


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
    lost_iterations: int = 0
    """Committed iterations that were given up, because all holders of a part of their state died."""
    state_source: str = "live"
    """Where the state came from: live, snapshot, checkpoint."""
    outcome: str = ""
    bound_tokens_per_s: Number = None
    """Healthy throughput times the share of devices that are left: no plan can be faster."""
    predicted_tokens_per_s: Number = None
    predicted_by: str = ""
    """constants: by those measured on the job; pace: by nominal ones, scaled to what it achieved before; nominal: then
    it says how plans compare, not how fast this machine is. Empty: not recorded."""
    achieved_tokens_per_s: Number = None
    created_at: datetime
    applied_at: datetime | None = None

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own way to publish a property
    @property
    def prediction_error(self) -> float | None:
        """Achieved over predicted throughput, minus 1; null for a nominal prediction: that is about no real machine."""
        predicted, achieved = self.predicted_tokens_per_s, self.achieved_tokens_per_s
        return achieved / predicted - 1 if achieved and predicted and self.predicted_by != "nominal" else None

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own way to publish a property
    @property
    def pause_s(self) -> float | None:
        """Time without training: the outage (`total`) of a recovery; of a planned change only rebuild and move."""
        if self.mode == "recovery":
            return self.phases_s.get("total")
        parts = [self.phases_s.get(phase) for phase in ("rebuild", "move")]
        return sum(p or 0.0 for p in parts) if self.mode == "planned" and any(p is not None for p in parts) else None


class ReconfigurationDetail(ReconfigurationView):
    """One change in full: what triggered it, both plans, and what it cost."""

    incident: IncidentView | None = None
    old_plan: PlanView | None = None
    new_plan: PlanView | None = None
    lost_device_s: Number = None
    """`pause_s` times the devices of the new plan's world: what the pause cost, without a slower plan afterwards."""


class HealthPoint(_View):
    """What the detector said about a device in one iteration."""

    at: datetime
    iteration: int
    p: float
    confidence: Number = None
    """That it is slow."""


class DeviceDetail(DeviceView):
    """One device with its history."""

    health: list[HealthPoint] = Field(default_factory=list)
    """Oldest first; as far back as the score stream reaches (minutes)."""
    incidents: list[IncidentView] = Field(default_factory=list)
    """That concerned it, newest first."""


class AuditView(_View):
    """One request of an operator, and what became of it."""

    sequence: int
    """Of the request, in the database's log; newer ones are greater."""
    asked_at: datetime
    job: str
    action: str
    actor: str
    role: str
    client: str = ""
    reason: str = ""
    parameters: Document = Field(default_factory=dict)
    accepted: bool | None = None
    """None: no answer is recorded."""
    detail: str = ""
    reconfiguration_id: str | None = None


class WhatIfView(_View):
    """Predicted with the cost model; nothing is applied. Throughputs in tokens/s."""

    job: str
    epoch: int
    faults: dict[int, float]
    now_tokens_per_s: Number
    do_nothing_tokens_per_s: Number
    """With the faults and the plan in force; 0 if a device of the plan is lost."""
    best_tokens_per_s: Number
    bound_tokens_per_s: Number
    change_s: Number = None
    """Predicted time without training."""
    bytes_moved: int | None = None
    break_even_s: Number = None
    """When the change has paid for itself; null: never."""
    predicted_by: str = "nominal"
    """pace: scaled to what the job achieves under the plan in force; nominal: too few of its iterations are known."""
    shares_cores: bool = False
    """The job's workers share processors; the answer is as if each had a device of its own."""
    name: str
    """Of the best plan's kind."""
    difference: str
    plan: Document
    alternatives: Json = None
    planning_s: Number = None


class OpenDecision(_View):
    """Advice, or a wait, that a person may rule on."""

    id: str
    trigger: str
    action: str
    """advise or wait."""
    reason: str
    difference: str = ""
    predicted_tokens_per_s: Number = None
    stay_tokens_per_s: Number = None
    """With the plan in force at the same speeds."""
    created_at: datetime


class ThresholdView(_View):
    """A number of the decision rules."""

    name: str
    value: float
    """In force for this job."""
    default: float
    low: float
    high: float
    meaning: str


class ControlView(_View):
    """How a job is governed."""

    mode: str
    """act, advise, off."""
    held: bool
    """No change that can wait is made."""
    held_until: datetime | None = None
    """None while held: until it is lifted."""
    breaker: str = ""
    """Why automatic changes stopped; empty: they did not."""
    evicted: tuple[int, ...] = ()
    thresholds: list[ThresholdView] = Field(default_factory=list)
    decision: OpenDecision | None = None


class Me(_View):
    """Who asks, and what they may do."""

    name: str
    role: str
    tokens: bool
    """Whether this gateway asks for tokens."""


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


class Accepted(BaseModel):
    """The scheduler has committed the change; its effects follow as events."""

    job: str
    reconfiguration_id: str | None = None
    decision_id: str | None = None


class Problem(BaseModel):
    """RFC 9457 problem details (`application/problem+json`)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str = ""
