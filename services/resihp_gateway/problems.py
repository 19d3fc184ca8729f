"""Errors of the REST interface, told as RFC 9457 problem details."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from resihp_bus.port import BusError
from resihp_gateway.models import Problem

MEDIA_TYPE = "application/problem+json"
TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    422: "Invalid request",
    429: "Too many requests",
    503: "Unavailable",
}
READ_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": TITLES[status],
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status in (400, 401, 403, 404, 422, 503)
}
WRITE_PROBLEMS = READ_PROBLEMS | {status: READ_PROBLEMS[404] | {"description": TITLES[status]} for status in (409, 429)}
"""What the description says about errors, for reading and for writing routes."""
_log = structlog.get_logger("gateway")


class ApiError(Exception):
    """An answer other than success. `status` is one of `TITLES`; `detail` is one clear sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def install(app: FastAPI, unavailable: tuple[type[Exception], ...]) -> None:
    """Register the handlers; `unavailable` lists the database's own errors for 'cannot be reached'."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    kinds: tuple[type[Exception], ...] = (BusError, *unavailable)
    for kind in kinds:
        app.add_exception_handler(kind, _unavailable)


def problem(request: Request, status: int, detail: str) -> JSONResponse:
    body = Problem(title=TITLES.get(status, "Error"), status=status, detail=detail, instance=request.url.path)
    headers = {503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
    return JSONResponse(body.model_dump(), status, headers, MEDIA_TYPE)


async def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return problem(request, error.status, error.detail)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return problem(request, error.status_code, str(error.detail))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """The first violated rule in one line, with the place of the value."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return problem(request, 422, f"{where}: {first['msg'].removeprefix('Value error, ')}")


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    _log.warning("dependency unavailable", path=request.url.path, error=f"{type(error).__name__}: {error}")
    return problem(request, 503, f"{type(error).__name__}: {error}")
