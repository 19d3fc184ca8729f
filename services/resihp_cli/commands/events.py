"""`resihp events`: stored events from the database, or new ones as they happen."""

from __future__ import annotations

import asyncio
import difflib
import json
from datetime import datetime

from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import gateway_url
from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_gateway.models import EventView
from resihp_gateway.wording import EVENTS, describe


def run_events(
    *,
    follow: bool,
    as_json: bool,
    job: str | None,
    name: str | None,
    after: int | None,
    url: str | None,
    database: str | None,
    wait_s: float,
) -> int:
    """One line per event; with `as_json` one JSON object per line."""
    if name is not None and name not in EVENTS:
        near = difflib.get_close_matches(name, sorted(EVENTS), n=1, cutoff=0.4)
        raise CliError(
            f"no event is called {name!r}{f'; did you mean {near[0]}?' if near else ''} (docs/messages.md has all)"
        )
    if follow and database is not None:
        raise CliError("--follow needs a running gateway, not --db")
    if follow:
        return run_loop(_follow(url, job, name, after, as_json, wait_s))
    if url is not None:
        raise CliError("stored events are read from the database: use --db, or --follow with --url")
    return run_loop(_stored(database, job, name, after or 0, as_json))


async def _stored(database: str | None, job: str | None, name: str | None, after: int, as_json: bool) -> int:
    from resihp_cli.commands.stored import database_url, reading
    from resihp_store import queries

    url = database_url(database, None)
    async with reading(url) as connection:
        while True:
            found = await queries.events(connection, after_sequence=after, job_name=job, name=name)
            for record in found:
                _print(EventView.model_validate(record), as_json)
            if not found:
                return 0
            after = found[-1].sequence


async def _follow(
    url: str | None, job: str | None, name: str | None, after: int | None, as_json: bool, wait_s: float
) -> int:
    async with GatewayClient(await _await_gateway(url, wait_s)) as client:
        async for event in client.events(job=job, name=name, after=after):
            _print(event, as_json)
    return 0


async def _await_gateway(url: str | None, wait_s: float) -> str:
    """The gateway's address once it answers. Raises `CliError` if it does not within `wait_s`."""
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            found = gateway_url(url)
            async with GatewayClient(found) as client:
                await client.jobs()
            return found
        except CliError:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(0.1)


def _print(event: EventView, as_json: bool) -> None:
    if as_json:
        print(json.dumps(event.model_dump(mode="json"), separators=(",", ":")), flush=True)
        return
    at: datetime = event.occurred_at.astimezone()
    print(
        f"{event.sequence:>6}  {at:%H:%M:%S.%f}"[:-3] + f"  {event.job:<10} {event.name:<24} {describe(event)}",
        flush=True,
    )
