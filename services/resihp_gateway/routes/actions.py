"""Requests of operators: sent to the scheduler's leader, answered once the change is committed in the database."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body

from resihp_gateway.context import GatewayDep
from resihp_gateway.models import Accepted, FaultRequest, PlanRequest, Problem, RestartRequest, StopRequest
from resihp_gateway.problems import ApiError
from resihp_gateway.routes.jobs import JobName
from resihp_messages import JobSpec
from resihp_messages.request import RequestFault, RequestPlan, RequestRestart, RequestStop, SubmitJob
from resihp_plan.plan import InvalidPlan, ParallelPlan

router = APIRouter(
    tags=["actions"],
    responses={404: {"model": Problem}, 409: {"model": Problem}, 422: {"model": Problem}, 503: {"model": Problem}},
)
SPEC_EXAMPLES = {
    "small": {
        "summary": "Eight devices, TP 2 x PP 2 x DP 2",
        "value": {"name": "small", "iterations": 40, "parallel": {"tp": 2, "pp": 2, "dp": 2}},
    }
}
PLAN_EXAMPLES = {
    "two stages": {
        "summary": "One replica of two stages on four ranks",
        "value": {
            "reason": "try TP 2 x PP 2",
            "plan": {
                "replicas": [
                    {
                        "num_micro_batches": 8,
                        "stages": [
                            {"layers": [0, 4], "ranks": [0, 1], "weights": [1, 1]},
                            {"layers": [4, 8], "ranks": [2, 3], "weights": [1, 1]},
                        ],
                    }
                ],
                "standby": [4, 5, 6, 7],
            },
        },
    }
}


@router.post("/jobs", status_code=201)
async def submit_job(spec: Annotated[JobSpec, Body(openapi_examples=SPEC_EXAMPLES)], gateway: GatewayDep) -> Accepted:
    """Train a job as soon as enough devices are free. 409 if its name is taken."""
    await gateway.ask(SubmitJob(spec=spec), job=spec.name)
    return Accepted(job=spec.name)


@router.post("/jobs/{job}/plans", status_code=202)
async def request_plan(
    job: JobName,
    request: Annotated[PlanRequest, Body(openapi_examples=PLAN_EXAMPLES)],
    gateway: GatewayDep,
) -> Accepted:
    """Switch a running job to a plan, between two iterations. 409 if the scheduler refuses it (another change is open,
    a device is lost, a rule is broken): the detail names the rule."""
    await gateway.require_job(job)
    try:
        plan = ParallelPlan.from_dict({"epoch": 0, **request.plan})
    except InvalidPlan as error:
        raise ApiError(422, str(error)) from error
    reply = await gateway.ask(RequestPlan(plan=plan.to_dict(), reason=request.reason), job=job)
    return Accepted(job=job, reconfiguration_id=reply.reconfiguration_id)


@router.post("/jobs/{job}/faults", status_code=202)
async def request_fault(job: JobName, request: FaultRequest, gateway: GatewayDep) -> Accepted:
    """Testing: SIGKILL or SIGSTOP a worker, or slow its device (on the virtual clock only: 409 otherwise)."""
    await gateway.require_job(job)
    await gateway.ask(RequestFault(**request.model_dump()), job=job)
    return Accepted(job=job)


@router.post("/jobs/{job}/restarts", status_code=202)
async def request_restart(job: JobName, request: RestartRequest, gateway: GatewayDep) -> Accepted:
    """Start the worker of a lost rank again: it gets its shards from the others and joins the running job. 409 if the
    rank is not lost, or no slot is free."""
    await gateway.require_job(job)
    await gateway.ask(RequestRestart(rank=request.rank), job=job)
    return Accepted(job=job)


@router.post("/jobs/{job}/stop", status_code=202)
async def stop_job(job: JobName, gateway: GatewayDep, request: StopRequest | None = None) -> Accepted:
    """Stop a job's workers; its record stays."""
    await gateway.require_job(job)
    await gateway.ask(RequestStop(reason=request.reason if request else "operator"), job=job)
    return Accepted(job=job)
