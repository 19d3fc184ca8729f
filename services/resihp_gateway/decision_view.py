"""A decision as the REST interface answers it. Apart from the route, so that a client need not load the server."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from resihp_gateway.models import Document, Json, Number


class DecisionView(BaseModel):
    """One question that was weighed."""

    model_config = ConfigDict(frozen=True, from_attributes=True, extra="ignore")

    id: str
    job: str
    incident_id: str | None = None
    reconfiguration_id: str | None = None
    """The change that followed."""
    trigger: str
    question: Document = Field(default_factory=dict)
    """`speeds` (rank -> p), `alive`, `old_epoch`, `horizon_s`."""
    action: str
    """act, advise, wait, stay; repair: the answer to a loss."""
    outcome: str
    """open, acted, approved, vetoed, superseded, settled."""
    reason: str
    difference: str = ""
    plan: Json = None
    alternatives: Json = None
    predicted_tokens_per_s: Number = None
    stay_tokens_per_s: Number = None
    """With the plan in force at the same speeds."""
    bound_tokens_per_s: Number = None
    achieved_tokens_per_s: Number = None
    """Median of the iterations after the change that followed."""
    planning_s: float
    again_at: datetime | None = None
    note: str = ""
    created_at: datetime
    closed_at: datetime | None = None
