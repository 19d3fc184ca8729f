"""`/asyncapi.json`: the messages of the bus, generated from the registry of schemas."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from resihp_messages import catalogue

router = APIRouter(tags=["messages"])


@router.get("/asyncapi.json")
async def describe_messages() -> dict[str, Any]:
    """AsyncAPI 3.0 description of every message on the bus."""
    return catalogue.asyncapi()
