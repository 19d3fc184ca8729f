"""`/events`: the event stream as server-sent events."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from resihp_gateway.context import GatewayDep
from resihp_gateway.event_stream import event_stream
from resihp_gateway.problems import READ_PROBLEMS, ApiError
from resihp_gateway.routes.records import TOKEN

router = APIRouter(tags=["events"], responses=READ_PROBLEMS)
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Frames of `id` (stream sequence), `event` (name) and `data` (an EventView as JSON).",
            "content": {
                "text/event-stream": {
                    "example": 'id: 7\nevent: WorkerLost\ndata: {"sequence":7,"name":"WorkerLost"}\n\n'
                }
            },
        }
    },
)
async def stream_events(
    gateway: GatewayDep,
    job: Annotated[str | None, Query(pattern=TOKEN, description="Only this job.")] = None,
    name: Annotated[
        str | None, Query(pattern=TOKEN, description="Only events of this name, for example WorkerLost.")
    ] = None,
    after: Annotated[
        int | None, Query(ge=0, lt=2**63, description="Events after this sequence; 0 from the first.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(description="As sent by a reconnecting client; wins over `after`.")
    ] = None,
) -> StreamingResponse:
    """Events after `Last-Event-ID` (or `after`; neither: from now on), then live ones. A comment line is sent whenever
    nothing happens for a while: a client that hears nothing for much longer should reconnect."""
    if last_event_id is not None and last_event_id.strip():
        if not re.fullmatch(r"[0-9]{1,18}", last_event_id.strip()):
            raise ApiError(422, f"Last-Event-ID {last_event_id[:64]!r} is not a sequence number")
        after = int(last_event_id)
    frames = event_stream(
        gateway.bus,
        gateway.tail,
        job=job or "*",
        name=name or "*",
        after_sequence=after,
        heartbeat_s=gateway.heartbeat_s,
        closing=gateway.closing,
    )
    return StreamingResponse(frames, media_type="text/event-stream", headers=STREAM_HEADERS)
