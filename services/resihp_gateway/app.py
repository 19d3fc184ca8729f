"""The FastAPI application, given what it needs; it knows no concrete adapter of the bus."""

from __future__ import annotations

from importlib import metadata

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from resihp_chassis import Health, Report
from resihp_gateway import problems
from resihp_gateway.context import Gateway
from resihp_gateway.routes import actions, events, jobs, records
from resihp_store import StoreError

PREFIX = "/api/v1"


def create_app(gateway: Gateway, health: Health, registry: CollectorRegistry) -> FastAPI:
    """All routes. `health` and `registry` are those of the process, so that one port answers probes too."""
    app = FastAPI(
        title="ResiHP",
        version=metadata.version("resihp"),
        summary="Jobs, devices, failures and reconfigurations of resilient hybrid-parallel training.",
        description="Changes are requests to the scheduler; an accepted one is committed in the database.",
    )
    app.state.gateway = gateway
    problems.install(app, (StoreError,))
    for module in (jobs, records, actions):
        app.include_router(module.router, prefix=PREFIX)
    app.include_router(events.router)
    app.include_router(_probes(health, registry))
    return app


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
