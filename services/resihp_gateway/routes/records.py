"""What went wrong, what was changed, and who asked for what."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from resihp_gateway import detail
from resihp_gateway.audit import NAMES, trail
from resihp_gateway.context import GatewayDep
from resihp_gateway.cursor import MAX_LIMIT, PageDep, link_next
from resihp_gateway.drawing import plans_svg
from resihp_gateway.models import AuditView, EventView, IncidentView, ReconfigurationDetail, ReconfigurationView
from resihp_gateway.problems import READ_PROBLEMS, ApiError
from resihp_plan.plan import ParallelPlan
from resihp_store import history, queries

router = APIRouter(tags=["history"], responses=READ_PROBLEMS)
TOKEN = r"^[A-Za-z0-9_-]{1,64}$"
OptionalJob = Annotated[str | None, Query(pattern=TOKEN, description="Only this job.", examples=["demo"])]
OptionalKind = Annotated[
    str | None, Query(pattern=TOKEN, description="Only this kind of incident.", examples=["worker_lost"])
]
OptionalRank = Annotated[
    int | None, Query(ge=0, lt=1_000_000, description="Only what concerned this device.", examples=[3])
]
Id = Annotated[str, Path(pattern=TOKEN)]


@router.get("/incidents")
async def list_incidents(
    gateway: GatewayDep,
    request: Request,
    response: Response,
    page: PageDep,
    job: OptionalJob = None,
    kind: OptionalKind = None,
    device: OptionalRank = None,
    state: Annotated[Literal["open", "closed"] | None, Query()] = None,
) -> list[IncidentView]:
    """Incidents, each with evidence, verdict and advice. The `Link` header names the next page."""
    is_open = None if state is None else state == "open"
    async with gateway.store.read() as connection:
        found = await history.incidents(connection, page, job=job, kind=kind, rank=device, is_open=is_open)
    link_next(request, response, page, found, "opened_at")
    return [IncidentView.model_validate(record) for record in found]


@router.get("/incidents/{incident_id}")
async def read_incident(incident_id: Id, gateway: GatewayDep) -> IncidentView:
    """One incident."""
    async with gateway.store.read() as connection:
        record = await queries.incident(connection, incident_id)
    if record is None:
        raise ApiError(404, f"there is no incident {incident_id!r}")
    return IncidentView.model_validate(record)


@router.get("/reconfigurations")
async def list_reconfigurations(
    gateway: GatewayDep,
    request: Request,
    response: Response,
    page: PageDep,
    job: OptionalJob = None,
    kind: OptionalKind = None,
    device: OptionalRank = None,
    status: Annotated[Literal["planned", "applied", "rejected", "superseded"] | None, Query()] = None,
    mode: Annotated[Literal["initial", "recovery", "planned"] | None, Query()] = None,
) -> list[ReconfigurationView]:
    """Changes of plan: reason, alternatives, phases, proof. The `Link` header names the next page."""
    async with gateway.store.read() as connection:
        found = await history.reconfigurations(
            connection, page, job=job, status=status, mode=mode, kind=kind, rank=device
        )
    link_next(request, response, page, found, "created_at")
    return [ReconfigurationView.model_validate(record) for record in found]


@router.get("/reconfigurations/{reconfiguration_id}")
async def read_reconfiguration(reconfiguration_id: Id, gateway: GatewayDep) -> ReconfigurationDetail:
    """One change of plan in full: trigger and evidence, both plans, alternatives, phases, proof, prediction, cost."""
    async with gateway.store.read() as connection:
        record = await queries.reconfiguration(connection, reconfiguration_id)
        if record is None:
            raise ApiError(404, f"there is no reconfiguration {reconfiguration_id!r}")
        return await detail.load(connection, record)


@router.get(
    "/reconfigurations/{reconfiguration_id}/plans.svg",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}}},
)
async def draw_plans(reconfiguration_id: Id, gateway: GatewayDep) -> Response:
    """Old plan above new plan, as a picture. 409 if the new plan is not stored."""
    change = await read_reconfiguration(reconfiguration_id, gateway)
    if change.new_plan is None:
        raise ApiError(409, f"the plan of epoch {change.new_epoch} is not stored")
    old = ParallelPlan.from_dict(change.old_plan.plan) if change.old_plan else None
    picture = plans_svg(old, ParallelPlan.from_dict(change.new_plan.plan), change.difference)
    return Response(picture, media_type="image/svg+xml")


BeforeSequence = Annotated[
    int | None, Query(ge=1, lt=2**53, description="Only those before this sequence: the next page.")
]


@router.get("/events")
async def list_events(
    gateway: GatewayDep,
    job: OptionalJob = None,
    name: Annotated[str | None, Query(pattern=TOKEN, examples=["WorkerLost"])] = None,
    before: BeforeSequence = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 200,
) -> list[EventView]:
    """Stored events of the database's log, newest first. (`sequence` here is the log's own; `/events` streams live.)"""
    async with gateway.store.read() as connection:
        found = await history.events(
            connection, names=(name,) if name else (), job=job, before_sequence=before, limit=limit
        )
    return [EventView.model_validate(record) for record in found]


@router.get("/audit")
async def list_actions(
    gateway: GatewayDep,
    job: OptionalJob = None,
    before: BeforeSequence = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 200,
) -> list[AuditView]:
    """What operators asked for: who, when, why, and the answer. Newest first."""
    async with gateway.store.read() as connection:
        found = await history.events(connection, names=NAMES, job=job, before_sequence=before, limit=2 * limit)
    return trail(found)[:limit]
