"""The dashboard's files: plain HTML, CSS and JavaScript modules, served as they are (no build step)."""

from __future__ import annotations

from os import PathLike, stat_result
from pathlib import Path

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

STATIC = Path(__file__).parent / "static"


class Page(StaticFiles):
    """Browsers ask each time whether a file has changed (ETag), so that an update shows at once."""

    def __init__(self) -> None:
        super().__init__(directory=STATIC, html=True)

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = "no-cache"
        return response
