"""Cursors: opaque to clients, in a `Link` header with `rel="next"` (RFC 8288), so that a list stays a plain list."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response

from resihp_gateway.problems import ApiError
from resihp_store.history import Page

MAX_LIMIT = 1000
Sort = Literal["oldest", "newest"]


def write(at: datetime, identifier: str) -> str:
    return base64.urlsafe_b64encode(f"{at.isoformat()} {identifier}".encode()).decode().rstrip("=")


def read(text: str) -> tuple[datetime, str]:
    """Raises `ApiError` 422 for text that no `Link` of ours held."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        at, _, identifier = raw.partition(" ")
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None or not identifier:
            raise ValueError(raw)
    except (ValueError, binascii.Error) as error:
        raise ApiError(422, "query.cursor: not a cursor of this list; take it from the Link header") from error
    return moment, identifier


def _page(
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Rows per page.")] = 200,
    sort: Annotated[Sort, Query(description="By time.")] = "oldest",
    cursor: Annotated[
        str | None, Query(max_length=200, description='From the `Link` header with rel="next" of the page before.')
    ] = None,
    since: Annotated[datetime | None, Query(description="Only from this time on (with zone).")] = None,
    until: Annotated[datetime | None, Query(description="Only before this time (with zone).")] = None,
) -> Page:
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise ApiError(422, f"query.{name}: a time needs its zone, such as 2026-01-31T12:00:00Z")
    return Page(limit, sort == "newest", read(cursor) if cursor else None, since, until)


PageDep = Annotated[Page, Depends(_page)]


def link_next(request: Request, response: Response, page: Page, rows: Sequence[Any], time: str) -> None:
    """Name the next page if this one is full. `time` is the field by which the list is ordered."""
    if len(rows) == page.limit:
        last = rows[-1]
        url = request.url.include_query_params(cursor=write(getattr(last, time), last.id))
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
