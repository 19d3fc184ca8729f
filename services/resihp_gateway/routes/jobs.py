"""Jobs, their devices, plans and iterations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from resihp_gateway import picture
from resihp_gateway.context import GatewayDep
from resihp_gateway.models import (
    DeviceDetail,
    DeviceView,
    HealthPoint,
    HeldOutLoss,
    IncidentView,
    IterationView,
    JobView,
    PlanView,
)
from resihp_gateway.problems import READ_PROBLEMS, ApiError
from resihp_store import JobRecord, history, queries

router = APIRouter(tags=["jobs"], responses=READ_PROBLEMS)
JobName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["demo"])]
JobQuery = Annotated[str, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["demo"])]


@router.get("/jobs")
async def list_jobs(gateway: GatewayDep) -> list[JobView]:
    """All jobs, oldest first."""
    async with gateway.store.read() as connection:
        return [await _view(connection, record) for record in await queries.jobs(connection)]


@router.get("/jobs/{job}")
async def read_job(job: JobName, gateway: GatewayDep) -> JobView:
    """One job."""
    record = await gateway.require_job(job)
    async with gateway.store.read() as connection:
        return await _view(connection, record)


async def _view(connection: queries.Connection, record: JobRecord) -> JobView:
    view = JobView.model_validate(record)
    found = await queries.newest_event(connection, record.job, "EvaluationFinished")
    return view.model_copy(update={"held_out": HeldOutLoss.model_validate(dict(found.body))}) if found else view


@router.get("/jobs/{job}/devices")
async def list_devices(job: JobName, gateway: GatewayDep) -> list[DeviceView]:
    """The job's devices by rank, with their place in the plan in force and what the newest beat says."""
    record = await gateway.require_job(job)
    async with gateway.store.read() as connection:
        devices = await queries.devices(connection, job)
        plans = await queries.plans(connection, job, from_epoch=record.epoch)
    return picture.devices(gateway, record, devices, plans)


@router.get("/jobs/{job}/devices/{rank}")
async def read_device(
    job: JobName, rank: Annotated[int, Path(ge=0, lt=1_000_000, examples=[3])], gateway: GatewayDep
) -> DeviceDetail:
    """One device: now, its health over the last minutes, and the newest incidents that concerned it."""
    record = await gateway.require_job(job)
    async with gateway.store.read() as connection:
        found = [d for d in await queries.devices(connection, job) if d.rank == rank]
        plans = await queries.plans(connection, job, from_epoch=record.epoch)
        page = history.Page(limit=50, newest_first=True)
        incidents = await history.incidents(connection, page, job=job, rank=rank)
    if not found:
        raise ApiError(404, f"job {job!r} has no rank {rank}")
    (view,) = picture.devices(gateway, record, found, plans)
    samples = gateway.health.of_device(job, rank)
    return DeviceDetail(
        **view.model_dump(),
        health=[HealthPoint(at=at, iteration=k, p=min(1.0, p), confidence=sure) for at, k, p, sure in samples],
        incidents=[IncidentView.model_validate(i) for i in incidents],
    )


@router.get("/plans")
async def list_plans(
    job: JobQuery,
    gateway: GatewayDep,
    epoch: Annotated[int | None, Query(ge=0, lt=2**53, description="Only this epoch.")] = None,
    after: Annotated[int, Query(ge=-1, lt=2**53, description="Only epochs after this one.")] = -1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[PlanView]:
    """Plans issued for the job, by epoch; the next page is `after` the last epoch of this one."""
    await gateway.require_job(job)
    first = after + 1 if epoch is None else epoch
    async with gateway.store.read() as connection:
        found = await queries.plans(connection, job, from_epoch=first, to_epoch=epoch, limit=limit)
    return [PlanView.model_validate(record) for record in found]


@router.get("/iterations")
async def list_iterations(
    job: JobQuery,
    gateway: GatewayDep,
    after: Annotated[int, Query(ge=0, lt=2**53, description="Only iterations after this one.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[IterationView]:
    """Committed iterations in order."""
    await gateway.require_job(job)
    async with gateway.store.read() as connection:
        found = await queries.iterations(connection, job, after=after, limit=limit)
    return [IterationView.model_validate(record) for record in found]
