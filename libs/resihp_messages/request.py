"""Requests of operators and tools to the scheduler's leader: core NATS request and reply, one answer per message id."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from resihp_messages.envelope import Body, Kind
from resihp_messages.ids import Finite, JsonObject, RankField, Seconds, Text, Token
from resihp_messages.job import JobSpec
from resihp_messages.thresholds import ThresholdName, check


class _Request(Body):
    kind: ClassVar[Kind] = Kind.REQUEST


class SubmitJob(_Request):
    """Train this job as soon as enough devices are free."""

    schema_name: ClassVar[str] = "SubmitJob.v1"

    spec: JobSpec


class RequestPlan(_Request):
    """Switch the healthy job to this plan, live. Its `epoch` is assigned by the scheduler."""

    schema_name: ClassVar[str] = "RequestPlan.v1"

    plan: JsonObject
    reason: Text = "operator"


class RequestFault(_Request):
    """Testing: inflict a fault on a device, or on the pipeline edge between two (`slow_link`). `corrupt` flips one bit
    of one of its parameters."""

    schema_name: ClassVar[str] = "RequestFault.v1"

    rank: RankField
    fault: Literal["kill", "freeze", "slow", "slow_link", "corrupt"]
    factor: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Only `slow` and `slow_link` (virtual clock): speed of device or link from then on, relative to healthy."""
    for_s: Seconds = 0.0
    """Only `slow` and `slow_link`: for how long; 0 means for good."""
    peer: RankField | None = None
    """Only `slow_link`: the other end of the edge, which is slow in both directions."""
    reason: Text = "operator"


class RequestValidation(_Request):
    """Probe these ranks (all if empty), their peers and their pipeline edges; the answer is `ValidationConcluded`."""

    schema_name: ClassVar[str] = "RequestValidation.v1"

    ranks: tuple[RankField, ...] = ()
    reason: Text = "operator"


class RequestRestart(_Request):
    """Start the worker of a lost rank again; it joins the running job at a planned change."""

    schema_name: ClassVar[str] = "RequestRestart.v1"

    rank: RankField
    reason: Text = "operator"


class RequestStop(_Request):
    """Stop a job."""

    schema_name: ClassVar[str] = "RequestStop.v1"

    reason: Text = "operator"


class RequestMode(_Request):
    """What the scheduler may do on its own for a job. Also resets a tripped breaker. Losses are always acted on."""

    schema_name: ClassVar[str] = "RequestMode.v1"

    mode: Literal["act", "advise", "off"]
    """`act`: decide and do; `advise`: decide, publish, and wait for approval; `off`: weigh nothing that can wait."""
    reason: Text = "operator"


class RequestRuling(_Request):
    """Approve or veto an advised or waiting decision. An approved plan is weighed again before it is applied."""

    schema_name: ClassVar[str] = "RequestRuling.v1"

    ruling: Literal["approve", "veto"]
    decision_id: Token | None = None
    """None: the newest open one."""
    reason: Text = "operator"


class RequestHold(_Request):
    """Make no change that can wait: until lifted (pause), or for some seconds (protect an evaluation); or lift it."""

    schema_name: ClassVar[str] = "RequestHold.v1"

    for_s: Seconds | None = None
    """None: until lifted; 0: lift."""
    reason: Text = "operator"


Ranks = Annotated[tuple[RankField, ...], Field(min_length=1, max_length=4096)]


class RequestEvict(_Request):
    """Take these devices out of the plan, in every mode, and use them again only once they are readmitted (or if the
    job cannot go on without them). Their processes stay and stand by."""

    schema_name: ClassVar[str] = "RequestEvict.v1"

    ranks: Ranks
    reason: Text = "operator"


class RequestReadmit(_Request):
    """End an eviction: a plan with these devices is weighed as for devices that came back."""

    schema_name: ClassVar[str] = "RequestReadmit.v1"

    ranks: Ranks
    reason: Text = "operator"


class RequestUndo(_Request):
    """Go back to the layout before the last change that altered it. Undone once more, it is that change again."""

    schema_name: ClassVar[str] = "RequestUndo.v1"

    reason: Text = "operator"


class RequestThreshold(_Request):
    """Change a number of the rules by which this job's changes are decided; what was weighed is weighed anew."""

    schema_name: ClassVar[str] = "RequestThreshold.v1"

    name: ThresholdName
    value: Finite | None = None
    """None: the default."""
    reason: Text = "operator"

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        check(self.name, self.value)
        return self


class Probe(_Request):
    """Sent by a service to itself: the answer proves that the way through the bus and back is open."""

    schema_name: ClassVar[str] = "Probe.v1"


class Reply(Body):
    """The answer. `accepted` only after the change is committed in the database."""

    schema_name: ClassVar[str] = "Reply.v1"
    kind: ClassVar[Kind] = Kind.REPLY

    accepted: bool
    reason: Text = ""
    temporary: bool = False
    """Refused only for now: asking again soon may help."""
    reconfiguration_id: Token | None = None
    decision_id: Token | None = None
