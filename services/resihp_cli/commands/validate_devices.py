"""`resihp validate-devices`: probe devices and links of a running job, and say which one is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime

from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import gateway_url, pick_job
from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_gateway.models import EventView
from resihp_messages import event

PATIENCE_S = 60.0
"""Some iterations pass before every rank holds the order."""


def run_validate_devices(ranks: Sequence[int], *, url: str | None, job: str | None) -> int:
    """One line; exit code 1 if something is slow."""
    return run_loop(_validate(gateway_url(url), ranks, job))


async def _validate(url: str, ranks: Sequence[int], job: str | None) -> int:
    async with GatewayClient(url) as client:
        found = await pick_job(client, job)
        asked_at = datetime.now(UTC)  # earlier conclusions are in the stream, too
        await client.validate(found.job, ranks)
        try:
            async with asyncio.timeout(PATIENCE_S):
                concluded = await _first_since(client, found.job, asked_at)
        except TimeoutError:
            raise CliError(f"{found.job}: no answer within {PATIENCE_S:g} s; did a rank die meanwhile?") from None
    body = event.ValidationConcluded.model_validate(concluded.body)
    compute_s = body.evidence["compute_s"]
    assert isinstance(compute_s, dict)  # our own detector's
    times = ", ".join(f"{rank}: {1e3 * float(str(s)):.2f}" for rank, s in compute_s.items())
    print(f"{found.job}: {body.advice} (milliseconds by rank: {times})")
    return 0 if body.verdict.fault == "nothing_found" else 1


async def _first_since(client: GatewayClient, job: str, asked_at: datetime) -> EventView:
    async with aclosing(client.events(job=job, name="ValidationConcluded", after=0)) as events:
        async for seen in events:
            if seen.occurred_at >= asked_at:
                return seen
    raise CliError("the event stream ended")
