"""`/api/v1/live`: the dashboard's stream of facts about one job."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from resihp_gateway.context import GatewayDep
from resihp_gateway.live.hub import Hubs
from resihp_gateway.problems import READ_PROBLEMS
from resihp_gateway.routes.events import STREAM_HEADERS
from resihp_gateway.routes.jobs import JobQuery

router = APIRouter(tags=["live"], responses=READ_PROBLEMS)


@router.get(
    "/live",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": (
                "Frames of `event` (name of the fact) and `data` (JSON): `job`, `map` (plan in force), `rates`, "
                "`points` (iteration, epoch, tokens/s, loss), `health` (base64, one byte per rank: p in percent; "
                "251 finished, 252 returning, 253 unknown, 254 standby, 255 stopped), `incidents`, "
                "`reconfigurations`, `stale`."
            ),
            "content": {"text/event-stream": {"example": 'event: health\ndata: "ZGRkZA=="\n\n'}},
        }
    },
)
async def stream_facts(job: JobQuery, gateway: GatewayDep, request: Request) -> StreamingResponse:
    """Every fact at once, then each again whenever it changes: a client keeps the newest of each name (and appends
    points), so nothing is lost by reconnecting. For events in order and without gaps use `/events`."""
    await gateway.require_job(job)
    hubs = request.app.state.hubs
    assert isinstance(hubs, Hubs)
    return StreamingResponse(hubs.stream(job), media_type="text/event-stream", headers=STREAM_HEADERS)
