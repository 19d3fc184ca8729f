"""What would happen if? Nothing is applied."""

from __future__ import annotations

from fastapi import APIRouter

from resihp_gateway import picture, whatif
from resihp_gateway.asked import WhatIfRequest
from resihp_gateway.context import GatewayDep
from resihp_gateway.models import WhatIfView
from resihp_gateway.problems import WRITE_PROBLEMS, ApiError
from resihp_gateway.routes.jobs import JobName
from resihp_messages import JobSpec
from resihp_store import queries
from resihp_store.pace import SEEN, settled_rate

router = APIRouter(tags=["what-if"], responses=WRITE_PROBLEMS)


@router.post("/jobs/{job}/whatif")
async def ask_whatif(job: JobName, request: WhatIfRequest, gateway: GatewayDep) -> WhatIfView:
    """Predict what these faults would cost a job, on top of what is known of its devices: now, if nobody acts, and
    with the best plan. Predictions come from the cost model, scaled to what the job achieves now. 409 if there is no
    plan to start from or none is possible; 503 while too many others ask."""
    record = await gateway.require_job(job)
    async with gateway.store.read() as connection:
        devices = await queries.devices(connection, job)
        plans = await queries.plans(connection, job, from_epoch=record.epoch)
        newest = await queries.iterations(connection, job, after=max(0, record.committed - SEEN), epoch=record.epoch)
    plan = picture.in_force(record, plans)
    if plan is None:
        raise ApiError(409, f"job {job!r} has no plan yet")
    nodes = {d.rank: d.node for d in devices if d.rank in plan.world}
    if unknown := sorted(set(request.faults) - set(nodes)):
        raise ApiError(409, f"rank {unknown[0]} is not in the plan in force")
    known = {r: min(1.0, p) for r, p in gateway.health.newest(job).items() if r in nodes and p < picture.HEALTHY_P}
    question = whatif.Question(
        spec=record.spec,
        plan=plan.to_dict(),
        nodes=nodes,
        speeds=known,
        faults=request.faults,
        horizon_s=request.horizon_s,
        rebuild_s=request.rebuild_s,
    )
    try:
        answer = await whatif.ask(question, timeout_s=gateway.whatif_timeout_s, slots=gateway.whatif_slots)
    except whatif.WhatIfError as error:
        raise ApiError(503 if error.busy else 409, str(error)) from error
    achieved, now = settled_rate(newest), answer["now_tokens_per_s"]
    if achieved and now:
        answer = {**whatif.paced(answer, achieved / now), "predicted_by": "pace"}
    decision = answer["decision"]
    return WhatIfView(
        job=job,
        epoch=record.epoch,
        faults=question.faults,
        shares_cores=JobSpec.model_validate(record.spec).shares_cores,
        **{k: answer[k] for k in WhatIfView.model_fields if k in answer},
        **{k: decision[k] for k in ("name", "difference", "plan", "alternatives", "planning_s")},
    )
