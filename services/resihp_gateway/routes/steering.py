"""What an operator may say about devices and rules: evict, readmit, undo, thresholds; and how a job is governed now."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter

from resihp_gateway.access import Operator, Viewer
from resihp_gateway.asked import EvictRequest, ReadmitRequest, ThresholdRequest, UndoRequest
from resihp_gateway.context import GatewayDep
from resihp_gateway.governed import governed
from resihp_gateway.models import Accepted, ControlView
from resihp_gateway.problems import READ_PROBLEMS, WRITE_PROBLEMS
from resihp_gateway.routes.jobs import JobName
from resihp_messages.request import RequestEvict, RequestReadmit, RequestThreshold, RequestUndo

router = APIRouter(tags=["actions"])


@router.get("/jobs/{job}/control", responses=READ_PROBLEMS)
async def read_control(job: JobName, gateway: GatewayDep, _: Viewer) -> ControlView:
    """Mode, holds, breaker, evicted devices, thresholds, and the decision that waits for a person."""
    await gateway.require_job(job)
    async with gateway.store.read() as connection:
        return await governed(connection, job, datetime.now(UTC))


@router.post("/jobs/{job}/evict", status_code=202, responses=WRITE_PROBLEMS)
async def evict(job: JobName, request: EvictRequest, gateway: GatewayDep, by: Operator) -> Accepted:
    """Take devices out of the plan, in every mode; they stand by until they are readmitted (or the job cannot go on
    without them). 409 if no plan is possible without them, 503 while another change is under way."""
    await gateway.require_job(job)
    reply = await gateway.ask(RequestEvict(ranks=request.ranks, reason=request.reason), job=job, by=by)
    return Accepted(job=job, reconfiguration_id=reply.reconfiguration_id)


@router.post("/jobs/{job}/readmit", status_code=202, responses=WRITE_PROBLEMS)
async def readmit(job: JobName, request: ReadmitRequest, gateway: GatewayDep, by: Operator) -> Accepted:
    """End an eviction; a plan with the devices is weighed as the mode allows. 409 if they are not evicted."""
    await gateway.require_job(job)
    await gateway.ask(RequestReadmit(ranks=request.ranks, reason=request.reason), job=job, by=by)
    return Accepted(job=job)


@router.post("/jobs/{job}/undo", status_code=202, responses=WRITE_PROBLEMS)
async def undo(job: JobName, gateway: GatewayDep, by: Operator, request: UndoRequest | None = None) -> Accepted:
    """Go back to the layout before the last change that altered it; the rules do not repeat that change until devices,
    speeds or thresholds differ. 409 if a device of it is lost."""
    await gateway.require_job(job)
    wanted = request or UndoRequest()
    reply = await gateway.ask(RequestUndo(reason=wanted.reason), job=job, by=by)
    return Accepted(job=job, reconfiguration_id=reply.reconfiguration_id)


@router.post("/jobs/{job}/threshold", status_code=202, responses=WRITE_PROBLEMS)
async def set_threshold(job: JobName, request: ThresholdRequest, gateway: GatewayDep, by: Operator) -> Accepted:
    """Change a number of the decision rules for this job, or go back to its default (`value` null)."""
    await gateway.require_job(job)
    body = RequestThreshold(name=request.name, value=request.value, reason=request.reason)
    await gateway.ask(body, job=job, by=by)
    return Accepted(job=job)
