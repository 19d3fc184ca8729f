"""The FastAPI application, given what it needs; it knows no concrete adapter of the bus."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi import APIRouter, FastAPI, Response, Security
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from resihp_chassis import Health, Metrics, Report
from resihp_gateway import problems
from resihp_gateway.access import Access, Role, needs
from resihp_gateway.context import Gateway
from resihp_gateway.guard import Guard, RateLimit
from resihp_gateway.live.hub import Hubs
from resihp_gateway.metering import Meter, RequestMetrics
from resihp_gateway.models import Problem
from resihp_gateway.page import Page
from resihp_gateway.routes import actions, asyncapi, decisions, events, jobs, live, me, records, steering, whatif
from resihp_store import StoreError

PREFIX = "/api/v1"


def create_app(gateway: Gateway, health: Health, metrics: Metrics, *, access: Access, limit: RateLimit) -> FastAPI:
    """All routes. `health` and `metrics` are those of the process, so that one port answers probes too."""
    app = FastAPI(
        title="ResiHP",
        version=metadata.version("resihp"),
        summary="Jobs, devices, failures and reconfigurations of resilient hybrid-parallel training.",
        description=(
            "Changes are requests to the scheduler; an accepted one is committed in the database. Lists name their "
            'next page in a `Link` header with rel="next". Errors are RFC 9457 problem details.'
        ),
    )
    app.state.gateway, app.state.access = gateway, access
    app.state.hubs = Hubs(gateway)
    problems.install(app, (StoreError,))
    reader = [Security(needs(Role.VIEW))]
    for module in (jobs, records, decisions, whatif, live, me):
        app.include_router(module.router, prefix=PREFIX, dependencies=reader)
    for writer in (actions, steering):
        app.include_router(writer.router, prefix=PREFIX)
    app.include_router(events.router, dependencies=reader)
    app.include_router(asyncapi.router)
    app.include_router(_probes(health, metrics.registry))
    app.mount("/", Page(), name="dashboard")
    app.add_middleware(Meter, metrics=RequestMetrics(metrics, app.state.hubs))
    app.add_middleware(Guard, limit=limit, unprotected=("/docs", "/redoc"))
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]  # the framework's own way to extend it
    return app


def _describe(app: FastAPI) -> dict[str, Any]:
    """The framework's description, with the one schema that no route returns as its model: the problem."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema()
        app.openapi_schema = document
    return app.openapi_schema


def _probes(health: Health, registry: CollectorRegistry) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/livez")
    async def livez() -> JSONResponse:
        return _answer(health.live())

    @router.get("/readyz")
    async def readyz() -> JSONResponse:
        return _answer(health.ready())

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _answer(report: Report) -> JSONResponse:
    return JSONResponse({"ok": report.ok, **report.parts}, 200 if report.ok else 503)
