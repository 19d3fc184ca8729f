"""What the scheduler weighed about what could wait: answer, alternatives, reasons, and the change that followed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from resihp_gateway.context import GatewayDep
from resihp_gateway.models import Document, Json, Number
from resihp_gateway.problems import READ_PROBLEMS
from resihp_gateway.routes.jobs import JobName
from resihp_store import DecisionOutcome, decisions, history

router = APIRouter(tags=["history"], responses=READ_PROBLEMS)


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


@router.get("/jobs/{job}/decisions")
async def list_decisions(
    job: JobName,
    gateway: GatewayDep,
    state: Annotated[DecisionOutcome | None, Query(description="Only decisions that ended so.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[DecisionView]:
    """Newest first."""
    await gateway.require_job(job)
    async with gateway.store.read() as connection:
        found = await decisions.decisions(connection, job, outcome=state, newest_first=True, limit=limit)
        achieved = await history.achieved(connection, {d.reconfiguration_id for d in found if d.reconfiguration_id})
    return [
        DecisionView.model_validate(record).model_copy(
            update={"achieved_tokens_per_s": achieved.get(record.reconfiguration_id or "")}
        )
        for record in found
    ]
