"""What the scheduler weighed about what could wait: answer, alternatives, reasons, and the change that followed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from resihp_gateway.context import GatewayDep
from resihp_gateway.decision_view import DecisionView
from resihp_gateway.problems import READ_PROBLEMS
from resihp_gateway.routes.jobs import JobName
from resihp_store import DecisionOutcome, decisions, history

router = APIRouter(tags=["history"], responses=READ_PROBLEMS)


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
