"""What went wrong and what was changed."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from resihp_gateway.context import GatewayDep
from resihp_gateway.models import IncidentView, Problem, ReconfigurationView
from resihp_gateway.problems import ApiError
from resihp_store import queries

router = APIRouter(tags=["history"], responses={404: {"model": Problem}, 503: {"model": Problem}})
OptionalJob = Annotated[
    str | None, Query(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Only this job.", examples=["demo"])
]
Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@router.get("/incidents")
async def list_incidents(gateway: GatewayDep, job: OptionalJob = None) -> list[IncidentView]:
    """Every incident, oldest first: evidence, verdict and advice."""
    async with gateway.store.read() as connection:
        return [IncidentView.model_validate(r) for r in await queries.incidents(connection, job_name=job)]


@router.get("/reconfigurations")
async def list_reconfigurations(gateway: GatewayDep, job: OptionalJob = None) -> list[ReconfigurationView]:
    """Every change of plan, oldest first: reason, alternatives, phases, proof."""
    async with gateway.store.read() as connection:
        return [ReconfigurationView.model_validate(r) for r in await queries.reconfigurations(connection, job_name=job)]


@router.get("/reconfigurations/{reconfiguration_id}")
async def read_reconfiguration(reconfiguration_id: Id, gateway: GatewayDep) -> ReconfigurationView:
    """One change of plan."""
    async with gateway.store.read() as connection:
        record = await queries.reconfiguration(connection, reconfiguration_id)
    if record is None:
        raise ApiError(404, f"there is no reconfiguration {reconfiguration_id!r}")
    return ReconfigurationView.model_validate(record)
