"""`resihp inject`: a fault on purpose."""

from __future__ import annotations

from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import gateway_url, pick_job
from resihp_cli.commands.running import run as run_loop


def run_inject(fault: str, rank: int, *, url: str | None, job: str | None) -> int:
    return run_loop(_inject(gateway_url(url), fault, rank, job))


def run_restart(rank: int, *, url: str | None, job: str | None) -> int:
    return run_loop(_restart(gateway_url(url), rank, job))


async def _restart(url: str, rank: int, job: str | None) -> int:
    async with GatewayClient(url) as client:
        found = await pick_job(client, job)
        await client.restart(found.job, rank)
    print(f"{found.job}: rank {rank} is being started again; follow it with `resihp events --follow`")
    return 0


def run_slow(rank: int, factor: float, for_s: float, *, url: str | None, job: str | None) -> int:
    return run_loop(_slow(gateway_url(url), rank, factor, for_s, job))


async def _slow(url: str, rank: int, factor: float, for_s: float, job: str | None) -> int:
    async with GatewayClient(url) as client:
        found = await pick_job(client, job)
        await client.inflict(found.job, rank, "slow", factor=factor, for_s=for_s)
    how_long = f"for {for_s:g} s" if for_s else "for good"
    print(f"{found.job}: the virtual device of rank {rank} will run at {factor:g} of its healthy speed {how_long}")
    return 0


def run_slow_link(ends: tuple[int, int], factor: float, for_s: float, *, url: str | None, job: str | None) -> int:
    return run_loop(_slow_link(gateway_url(url), ends, factor, for_s, job))


async def _slow_link(url: str, ends: tuple[int, int], factor: float, for_s: float, job: str | None) -> int:
    rank, peer = ends
    async with GatewayClient(url) as client:
        found = await pick_job(client, job)
        await client.inflict(found.job, rank, "slow_link", peer=peer, factor=factor, for_s=for_s)
    how_long = f"for {for_s:g} s" if for_s else "for good"
    print(f"{found.job}: the virtual link {rank}-{peer} will run at {factor:g} of its healthy speed {how_long}")
    return 0


async def _inject(url: str, fault: str, rank: int, job: str | None) -> int:
    async with GatewayClient(url) as client:
        found = await pick_job(client, job)
        await client.inflict(found.job, rank, fault)
    what = {"kill": "SIGKILL", "freeze": "SIGSTOP", "corrupt": "a flipped bit"}[fault]
    print(f"{found.job}: {what} for rank {rank} is on its way; follow it with `resihp events --follow`")
    return 0
