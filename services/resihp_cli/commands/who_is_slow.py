"""`resihp who-is-slow [FILE]`: one line, about a recorded run or the running system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from resihp_cli.commands.locate import gateway_url, pick_job
from resihp_cli.commands.running import run as run_loop
from resihp_detect import Verdict, VerdictKind
from resihp_gateway.models import DeviceView, IncidentView


def run_who_is_slow(path: Path | None, *, url: str | None, job: str | None) -> int:
    """Exit code 0 if nobody is slow at the end, 1 if somebody is."""
    if path is not None:
        from resihp_cli.commands.replay import replay

        line, slow = _of_trace(replay(path).verdicts)
    else:
        line, slow = run_loop(_of_job(gateway_url(url), job))
    print(line)
    return int(slow)


def _of_trace(verdicts: tuple[Verdict, ...]) -> tuple[str, bool]:
    since: dict[str, Verdict] = {}
    spells = []
    for v in verdicts:
        if v.kind is VerdictKind.DEVICE_SLOW and v.device is not None:
            since[v.device] = v
        elif v.kind is VerdictKind.DEVICE_RECOVERED and v.device is not None and v.device in since:
            began = since.pop(v.device)
            spells.append(
                f"{v.device} was at {began.p:.2f} of its speed from {began.first_iteration} to {v.first_iteration}"
            )
    now = [f"{d} is at {v.p:.2f} of its speed since {v.first_iteration}" for d, v in since.items()]
    return "; ".join([*now, *spells]) or "nobody was slow", bool(now)


async def _of_job(url: str, job: str | None) -> tuple[str, bool]:
    from resihp_cli.client import GatewayClient

    async with GatewayClient(url) as client:
        chosen = await pick_job(client, job)
        devices, incidents = await client.devices(chosen.job), await client.incidents(chosen.job)
    return of_facts(chosen.job, devices, incidents)


def of_facts(job: str, devices: Sequence[DeviceView], incidents: Sequence[IncidentView]) -> tuple[str, bool]:
    """Open incidents of slowness, as the detector found them, whatever the plan has made of it; and who has stopped."""
    lost = [str(d.rank) for d in devices if d.state == "lost"]
    slow = [
        f"rank {rank} ({i.node}) is at {i.verdict['p']:.2f} of its speed since {i.evidence['first_iteration']}"
        for i in incidents
        if i.kind == "device_slow" and i.closed_at is None
        for rank in i.ranks
        if str(rank) not in lost
    ]
    parts = slow + ([f"stopped: {', '.join(lost)}"] if lost else [])
    return "; ".join(parts) or f"nobody is slow in {job}", bool(slow)
