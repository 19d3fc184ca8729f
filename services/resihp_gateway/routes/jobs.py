"""Jobs, their devices, plans and iterations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from resihp_gateway.context import Gateway, GatewayDep
from resihp_gateway.models import DeviceView, IterationView, JobView, PlanView, Position, Problem
from resihp_plan.plan import ParallelPlan
from resihp_store import DeviceRecord, JobRecord, PlanRecord, queries

router = APIRouter(tags=["jobs"], responses={404: {"model": Problem}, 503: {"model": Problem}})
JobName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["demo"])]
JobQuery = Annotated[str, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["demo"])]


@router.get("/jobs")
async def list_jobs(gateway: GatewayDep) -> list[JobView]:
    """All jobs, oldest first."""
    async with gateway.store.read() as connection:
        return [JobView.model_validate(record) for record in await queries.jobs(connection)]


@router.get("/jobs/{job}")
async def read_job(job: JobName, gateway: GatewayDep) -> JobView:
    """One job."""
    return JobView.model_validate(await gateway.require_job(job))


@router.get("/jobs/{job}/devices")
async def list_devices(job: JobName, gateway: GatewayDep) -> list[DeviceView]:
    """The job's devices by rank, with their place in the plan in force and what the newest beat says."""
    record = await gateway.require_job(job)
    async with gateway.store.read() as connection:
        devices = await queries.devices(connection, job)
        plans = await queries.plans(connection, job)
    return _join(gateway, record, devices, plans)


@router.get("/plans")
async def list_plans(job: JobQuery, gateway: GatewayDep) -> list[PlanView]:
    """Every plan issued for the job, by epoch."""
    await gateway.require_job(job)
    async with gateway.store.read() as connection:
        return [PlanView.model_validate(record) for record in await queries.plans(connection, job)]


@router.get("/iterations")
async def list_iterations(
    job: JobQuery,
    gateway: GatewayDep,
    after: Annotated[int, Query(ge=0, description="Only iterations after this one.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[IterationView]:
    """Committed iterations in order."""
    await gateway.require_job(job)
    async with gateway.store.read() as connection:
        found = await queries.iterations(connection, job, after=after, limit=limit)
    return [IterationView.model_validate(record) for record in found]


def _join(
    gateway: Gateway, record: JobRecord, devices: tuple[DeviceRecord, ...], plans: tuple[PlanRecord, ...]
) -> list[DeviceView]:
    plan = _in_force(record, plans)
    beats = gateway.beats.workers(record.job)
    found = []
    for device in devices:
        place = plan.position(device.rank) if plan is not None and device.state.alive else None
        seen = beats.get(device.rank)
        seen = seen if seen is not None and seen.node == device.node else None
        found.append(
            DeviceView(
                rank=device.rank,
                node=device.node,
                slot=device.slot,
                state=str(device.state),
                p=1.0 if device.state.alive else 0.0,
                pid=device.pid,
                start=device.start,
                position=Position(replica=place[0], stage=place[1], tp_index=place[2]) if place else None,
                worker_state=seen.worker.state if seen else None,
                live_pid=seen.worker.pid if seen else None,
                iteration=seen.worker.iteration if seen else None,
                silent_s=seen.worker.silent_s if seen else None,
                beat_age_s=seen.age_s if seen else None,
            )
        )
    return found


def _in_force(record: JobRecord, plans: tuple[PlanRecord, ...]) -> ParallelPlan | None:
    """The newest plan that all its ranks installed; before the first one, the newest issued."""
    chosen = next((p for p in plans if p.epoch == record.epoch), plans[-1] if plans else None)
    return ParallelPlan.from_dict(chosen.plan) if chosen else None
