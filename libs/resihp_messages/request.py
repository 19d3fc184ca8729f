"""Requests of operators and tools to the scheduler's leader: core NATS request and reply, one answer per message id."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resihp_messages.envelope import Body, Kind
from resihp_messages.ids import JsonObject, RankField, Seconds, Text, Token
from resihp_messages.job import JobSpec


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
    """Testing: inflict a fault on a device."""

    schema_name: ClassVar[str] = "RequestFault.v1"

    rank: RankField
    fault: Literal["kill", "freeze", "slow"]
    factor: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Only `slow` (virtual clock): the device's speed from then on, relative to its healthy one."""
    for_s: Seconds = 0.0
    """Only `slow`: for how long; 0 means for good."""


class RequestRestart(_Request):
    """Start the worker of a lost rank again; it joins the running job at a planned change."""

    schema_name: ClassVar[str] = "RequestRestart.v1"

    rank: RankField


class RequestStop(_Request):
    """Stop a job."""

    schema_name: ClassVar[str] = "RequestStop.v1"

    reason: Text = "operator"


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
