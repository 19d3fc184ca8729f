"""`resihp status`: jobs and devices now."""

from __future__ import annotations

import json

from rich.console import Console

from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import gateway_url, pick_job
from resihp_cli.commands.running import run as run_loop
from resihp_cli.view.tables import device_table, job_table


def run_status(*, url: str | None, job: str | None, as_json: bool) -> int:
    return run_loop(_status(gateway_url(url), job, as_json))


async def _status(url: str, job: str | None, as_json: bool) -> int:
    async with GatewayClient(url) as client:
        jobs = await client.jobs()
        shown = await pick_job(client, job) if jobs or job else None
        devices = await client.devices(shown.job) if shown else []
    if as_json:
        document = {
            "gateway": url,
            "jobs": [j.model_dump(mode="json") for j in jobs],
            "job": shown.job if shown else None,
            "devices": [d.model_dump(mode="json") for d in devices],
        }
        print(json.dumps(document, indent=2))
        return 0
    console = Console(highlight=False)
    if not jobs:
        console.print(f"{url}: no job yet; start one with `resihp train JOB.toml`")
        return 0
    console.print(job_table(jobs))
    console.print()
    console.print(device_table(devices))
    return 0
