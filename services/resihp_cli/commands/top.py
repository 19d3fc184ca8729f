"""`resihp top`: the dashboard's facts in the terminal."""

from __future__ import annotations

import asyncio
import contextlib

from rich.console import Console
from rich.live import Live

from resihp_cli.client import GatewayClient, is_temporary
from resihp_cli.commands.locate import gateway_url, pick_job
from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_cli.view.top import Picture, render

RETRY_S = 1.0
COMPLETE = "control"
"""The last fact of the first round."""


def run_top(*, url: str | None, job: str | None, once: bool) -> int:
    """Until Ctrl-C; with `once` one picture."""
    try:
        return run_loop(_top(gateway_url(url), job, once))
    except KeyboardInterrupt:
        return 0


async def _top(url: str, wanted: str | None, once: bool) -> int:
    console = Console(highlight=False)
    async with GatewayClient(url) as client:
        job = (await pick_job(client, wanted)).job
        picture = Picture(job)
        if once:
            async with asyncio.timeout(15), contextlib.aclosing(client.facts(job)) as facts:
                async for name, value in facts:
                    picture.note(name, value)
                    if name == COMPLETE:
                        break
            console.print(render(picture, console.width))
            return 0
        screen = Live(console=console, screen=console.is_terminal, auto_refresh=False)
        with screen as live:
            while True:
                try:
                    async for name, value in client.facts(job):
                        picture.note(name, value)
                        picture.stale = ""
                        live.update(render(picture, console.width), refresh=name in ("health", COMPLETE, "points"))
                except CliError as error:
                    if not is_temporary(error):
                        raise
                    picture.stale = str(error)
                    live.update(render(picture, console.width), refresh=True)
                await asyncio.sleep(RETRY_S)
