"""Who asks."""

from __future__ import annotations

from fastapi import APIRouter, Request

from resihp_gateway.access import Access, Viewer
from resihp_gateway.models import Me
from resihp_gateway.problems import READ_PROBLEMS

router = APIRouter(tags=["access"], responses=READ_PROBLEMS)


@router.get("/me")
async def read_me(request: Request, by: Viewer) -> Me:
    """The name and role behind the token that was sent (or behind none)."""
    access = request.app.state.access
    assert isinstance(access, Access)
    return Me(name=by.name, role=str(by.role), tokens=access.asks_for_tokens)
