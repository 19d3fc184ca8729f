"""Finds the system and the job that a command is about."""

from __future__ import annotations

from resihp_cli.client import GatewayClient
from resihp_cli.errors import CliError
from resihp_cli.run_folder import RunFolder, find
from resihp_gateway.models import JobView


def gateway_url(url: str | None) -> str:
    """The given gateway, or that of the newest local run. Raises `CliError`."""
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise CliError(f"--url {url!r}: expected http://HOST:PORT")
        return url
    return find().read().gateway_url


def running_local() -> RunFolder | None:
    """The newest run of this machine if its supervisor lives."""
    import psutil

    try:
        folder = find()
        pid = folder.read().supervisor_pid
    except CliError:
        return None
    return folder if psutil.pid_exists(pid) else None


async def pick_job(client: GatewayClient, job: str | None) -> JobView:
    """The named job, or the newest one, active ones first. Raises `CliError` if there is none."""
    if job is not None:
        return await client.job(job)
    jobs = await client.jobs()
    if not jobs:
        raise CliError(f"{client.url} has no job: start one with `resihp train JOB.toml`")
    active = [j for j in jobs if j.state in ("submitted", "starting", "running")] or jobs
    return max(active, key=lambda j: j.submitted_at.timestamp() if j.submitted_at else 0.0)
