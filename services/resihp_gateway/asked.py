"""Bodies of requests. Unknown fields are errors; every `reason` is kept in the audit trail."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from resihp_messages.thresholds import ThresholdName, check

RankNumber = Annotated[int, Field(ge=0, lt=1_000_000)]
Speed = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Reason = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
"""PostgreSQL stores no NUL."""


def _strict(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class FaultRequest(BaseModel):
    """Inflict a fault on a device, or on the pipeline edge between two (testing)."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"rank": 3, "fault": "kill"}]})

    rank: RankNumber
    fault: Literal["kill", "freeze", "slow", "slow_link", "corrupt"]
    reason: Reason = "operator"
    factor: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Only `slow` and `slow_link`: speed from then on, relative to healthy. The job's clock must be virtual."""
    for_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Only `slow` and `slow_link`: for how long; 0 means for good."""
    peer: RankNumber | None = None
    """Only `slow_link`: the other end of the edge."""

    @model_validator(mode="after")
    def _has_two_ends(self) -> Self:
        if (self.fault == "slow_link") != (self.peer is not None):
            raise ValueError(f"peer belongs to slow_link and to nothing else, not to {self.fault}")
        return self


class ValidationRequest(BaseModel):
    """Probe devices and links at the next iteration boundary."""

    model_config = _strict(ranks=[5])

    ranks: tuple[RankNumber, ...] = ()
    """Suspects; their peers are probed with them. Empty: everybody."""
    reason: Reason = "operator"


class RestartRequest(BaseModel):
    """Start the worker of a lost rank again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"rank": 3}]})

    rank: RankNumber
    reason: Reason = "operator"


class PlanRequest(BaseModel):
    """Switch the job to this plan, live. Its epoch is assigned by the scheduler."""

    model_config = ConfigDict(extra="forbid")

    plan: dict[str, JsonValue]
    reason: Reason = "operator"


class StopRequest(BaseModel):
    """Stop the job."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason = "operator"


class ModeRequest(BaseModel):
    """What the scheduler may do on its own; also resets a tripped breaker. Losses are always acted on."""

    model_config = _strict(mode="advise", reason="evaluation run")

    mode: Literal["act", "advise", "off"]
    reason: Reason = "operator"


class RulingRequest(BaseModel):
    """Approve or veto an advised or waiting decision."""

    model_config = _strict(reason="agreed with the on-call engineer")

    decision_id: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = None
    """None: the newest open one."""
    reason: Reason = "operator"


class HoldRequest(BaseModel):
    """Make no change that can wait."""

    model_config = _strict(for_s=600, reason="checkpoint upload")

    for_s: Annotated[float | None, Field(ge=0, le=30 * 86400, allow_inf_nan=False)] = None
    """None: until lifted; 0: lift the hold."""
    reason: Reason = "operator"


Ranks = Annotated[tuple[RankNumber, ...], Field(min_length=1, max_length=4096)]


class EvictRequest(BaseModel):
    """Use these devices no more, until they are readmitted."""

    model_config = _strict(ranks=[5], reason="bad link on n1")

    ranks: Ranks
    reason: Reason = "operator"


class ReadmitRequest(BaseModel):
    """These devices may be used again."""

    model_config = _strict(ranks=[5], reason="cable replaced")

    ranks: Ranks
    reason: Reason = "operator"


class UndoRequest(BaseModel):
    """Go back to the layout before."""

    model_config = _strict(reason="slower than before")

    reason: Reason = "operator"


class ThresholdRequest(BaseModel):
    """Change a number of the decision rules."""

    model_config = _strict(name="min_gain", value=0.05, reason="fewer changes during the evaluation")

    name: ThresholdName
    value: Annotated[float | None, Field(allow_inf_nan=False)] = None
    """None: the default."""
    reason: Reason = "operator"

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        check(self.name, self.value)
        return self


class WhatIfRequest(BaseModel):
    """Which devices would have which speed."""

    model_config = _strict(faults={"3": 0.0, "5": 0.5}, horizon_s=1800)

    faults: Annotated[dict[RankNumber, Speed], Field(min_length=1, max_length=4096)]
    """Rank -> p; 0: lost, 1: healthy again."""
    horizon_s: Annotated[float, Field(gt=0, le=365 * 86400, allow_inf_nan=False)] = 1800.0
    """For how long the gain counts."""
    rebuild_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 2.0
    """To rebuild process groups."""
