"""Requests of operators: sent to the scheduler's leader, answered once the change is committed in the database."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Body

from resihp_gateway.access import Admin, Identity, Operator
from resihp_gateway.asked import (
    FaultRequest,
    HoldRequest,
    ModeRequest,
    PlanRequest,
    RestartRequest,
    RulingRequest,
    StopRequest,
    ValidationRequest,
)
from resihp_gateway.context import Gateway, GatewayDep
from resihp_gateway.models import Accepted
from resihp_gateway.problems import WRITE_PROBLEMS, ApiError
from resihp_gateway.routes.jobs import JobName
from resihp_messages import JobSpec
from resihp_messages.request import (
    RequestFault,
    RequestHold,
    RequestMode,
    RequestPlan,
    RequestRestart,
    RequestRuling,
    RequestStop,
    RequestValidation,
    SubmitJob,
)
from resihp_plan.plan import InvalidPlan, ParallelPlan

router = APIRouter(tags=["actions"], responses=WRITE_PROBLEMS)
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
async def submit_job(
    spec: Annotated[JobSpec, Body(openapi_examples=SPEC_EXAMPLES)], gateway: GatewayDep, by: Operator
) -> Accepted:
    """Train a job as soon as enough devices are free. 409 if its name is taken."""
    await gateway.ask(SubmitJob(spec=spec), job=spec.name, by=by)
    return Accepted(job=spec.name)


@router.post("/jobs/{job}/plans", status_code=202)
async def request_plan(
    job: JobName,
    request: Annotated[PlanRequest, Body(openapi_examples=PLAN_EXAMPLES)],
    gateway: GatewayDep,
    by: Operator,
) -> Accepted:
    """Switch a running job to a plan, between two iterations. 409 if the scheduler refuses it (another change is open,
    a device is lost, a rule is broken): the detail names the rule."""
    await gateway.require_job(job)
    try:
        plan = ParallelPlan.from_dict({"epoch": 0, **request.plan})
    except InvalidPlan as error:
        raise ApiError(422, str(error)) from error
    reply = await gateway.ask(RequestPlan(plan=plan.to_dict(), reason=request.reason), job=job, by=by)
    return Accepted(job=job, reconfiguration_id=reply.reconfiguration_id)


@router.post("/jobs/{job}/faults", status_code=202)
async def request_fault(job: JobName, request: FaultRequest, gateway: GatewayDep, by: Admin) -> Accepted:
    """Testing: SIGKILL or SIGSTOP a worker, slow its device or one of its pipeline edges (on the virtual clock only:
    409 otherwise), or flip a bit of its parameters."""
    await gateway.require_job(job)
    await gateway.ask(RequestFault(**request.model_dump()), job=job, by=by)
    return Accepted(job=job)


@router.post("/jobs/{job}/restarts", status_code=202)
async def request_restart(job: JobName, request: RestartRequest, gateway: GatewayDep, by: Operator) -> Accepted:
    """Start the worker of a lost rank again: it gets its shards from the others and joins the running job. 409 if the
    rank is not lost, or no slot is free."""
    await gateway.require_job(job)
    await gateway.ask(RequestRestart(rank=request.rank, reason=request.reason), job=job, by=by)
    return Accepted(job=job)


@router.post("/jobs/{job}/validations", status_code=202)
async def request_validation(
    job: JobName, gateway: GatewayDep, by: Operator, request: ValidationRequest | None = None
) -> Accepted:
    """Time a matrix product on suspects and their peers, and a transfer over their pipeline edges, between two
    iterations. The answer is the event `ValidationConcluded`."""
    await gateway.require_job(job)
    wanted = request or ValidationRequest()
    await gateway.ask(RequestValidation(ranks=wanted.ranks, reason=wanted.reason), job=job, by=by)
    return Accepted(job=job)


@router.post("/jobs/{job}/stop", status_code=202)
async def stop_job(job: JobName, gateway: GatewayDep, by: Operator, request: StopRequest | None = None) -> Accepted:
    """Stop a job's workers; its record stays."""
    await gateway.require_job(job)
    await gateway.ask(RequestStop(reason=request.reason if request else "operator"), job=job, by=by)
    return Accepted(job=job)


@router.post("/jobs/{job}/mode", status_code=202)
async def set_mode(job: JobName, request: ModeRequest, gateway: GatewayDep, by: Operator) -> Accepted:
    """`act`: decide and do; `advise`: decide and wait for approval; `off`: weigh nothing that can wait."""
    await gateway.require_job(job)
    await gateway.ask(RequestMode(mode=request.mode, reason=request.reason), job=job, by=by)
    return Accepted(job=job)


@router.post("/jobs/{job}/approve", status_code=202)
async def approve(job: JobName, gateway: GatewayDep, by: Operator, request: RulingRequest | None = None) -> Accepted:
    """Carry out an advised or waiting decision; its plan is weighed again first. 409 if none is open."""
    return await _rule(job, "approve", request or RulingRequest(), gateway, by)


@router.post("/jobs/{job}/veto", status_code=202)
async def veto(job: JobName, gateway: GatewayDep, by: Operator, request: RulingRequest | None = None) -> Accepted:
    """Drop an advised or waiting decision. 409 if none is open."""
    return await _rule(job, "veto", request or RulingRequest(), gateway, by)


async def _rule(
    job: str, ruling: Literal["approve", "veto"], request: RulingRequest, gateway: Gateway, by: Identity
) -> Accepted:
    await gateway.require_job(job)
    body = RequestRuling(ruling=ruling, decision_id=request.decision_id, reason=request.reason)
    reply = await gateway.ask(body, job=job, by=by)
    return Accepted(job=job, reconfiguration_id=reply.reconfiguration_id, decision_id=reply.decision_id)


@router.post("/jobs/{job}/hold", status_code=202)
async def hold(job: JobName, gateway: GatewayDep, by: Operator, request: HoldRequest | None = None) -> Accepted:
    """Pause: make no change that can wait, until lifted or for some seconds. Losses are still acted on."""
    await gateway.require_job(job)
    wanted = request or HoldRequest()
    await gateway.ask(RequestHold(for_s=wanted.for_s, reason=wanted.reason), job=job, by=by)
    return Accepted(job=job)
