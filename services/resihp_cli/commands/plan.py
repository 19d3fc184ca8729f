"""`resihp plan show|apply`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import gateway_url, pick_job
from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_cli.job_file import load_plan
from resihp_cli.watch import OVER
from resihp_gateway.models import PlanView
from resihp_gateway.wording import milliseconds, size


def run_show(*, url: str | None, job: str | None, epoch: int | None, as_json: bool) -> int:
    return run_loop(_show(gateway_url(url), job, epoch, as_json))


def run_apply(file: Path, *, url: str | None, job: str | None, reason: str, wait: bool) -> int:
    plan = load_plan(file)
    return run_loop(_apply(gateway_url(url), job, plan, reason, wait))


async def _show(url: str, job: str | None, epoch: int | None, as_json: bool) -> int:
    async with GatewayClient(url) as client:
        found = await pick_job(client, job)
        plans = await client.plans(found.job)
    chosen = [p for p in plans if p.epoch == epoch] if epoch is not None else plans[-1:]
    if not chosen:
        raise CliError(f"job {found.job} has no plan" + (f" of epoch {epoch}" if epoch is not None else " yet"))
    if as_json:
        print(json.dumps(chosen[0].plan, indent=2))
    else:
        _print_plan(chosen[0])
    return 0


def _print_plan(view: PlanView) -> None:
    from resihp_plan.plan import ParallelPlan

    plan = ParallelPlan.from_dict(view.plan)
    console = Console(highlight=False)
    console.print(f"epoch {view.epoch}, digest {view.digest[:16]}, {len(plan.world)} ranks")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("replica", "micro-batches", "stage", "layers", "ranks", "weights"):
        table.add_column(column)
    for a, replica in enumerate(plan.replicas):
        for s, stage in enumerate(replica.stages):
            table.add_row(
                f"R{a}" if s == 0 else "",
                str(replica.num_micro_batches) if s == 0 else "",
                f"S{s}",
                f"{stage.layer_start}-{stage.layer_stop - 1}",
                " ".join(map(str, stage.ranks)),
                ":".join(map(str, stage.weights)),
            )
    console.print(table)
    if plan.standby:
        console.print(f"standby: {' '.join(map(str, plan.standby))}")


async def _apply(url: str, job: str | None, plan: dict[str, object], reason: str, wait: bool) -> int:
    async with GatewayClient(url) as client:
        found = await pick_job(client, job)
        accepted = await client.request_plan(found.job, plan, reason)
        print(f"{found.job}: accepted as {accepted.reconfiguration_id}")
        if not wait or accepted.reconfiguration_id is None:
            return 0
        return await _wait_applied(client, found.job, accepted.reconfiguration_id)


async def _wait_applied(client: GatewayClient, job: str, reconfiguration_id: str) -> int:
    """Until the change is applied (0), or refused, superseded, or the job is over (1)."""
    while True:
        for r in await client.reconfigurations(job):
            if r.id != reconfiguration_id or r.status == "planned":
                continue
            if r.status != "applied":
                print(f"{job}: {r.status}")
                return 1
            total = milliseconds(r.phases_s.get("total"))
            print(f"{job}: applied in {total}, {size(r.bytes_moved)} moved: {r.difference}")
            return 0
        if (await client.job(job)).state in OVER:
            print(f"{job}: the job ended before the change")
            return 1
        await asyncio.sleep(0.1)
