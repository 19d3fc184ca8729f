"""`resihp whatif`: what faults would cost a described or a live job."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from resihp_cli import job_file
from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import gateway_url, pick_job
from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_gateway.whatif import paced
from resihp_gateway.wording import size
from resihp_messages import JobSpec
from resihp_plan import Cluster, CostModel, Device, InvalidPlan, ModelSpec, ParallelPlan, Schedule, Workload, validate
from resihp_plan.planner import Assumptions, Infeasible, Price, plan_initial
from resihp_plan.planner.whatif import what_if
from resihp_store.pace import SEEN, settled_rate


def run_whatif(
    file: Path | None,
    kill: Sequence[int],
    slow: Sequence[str],
    *,
    slow_link: Sequence[str] = (),
    any_schedule: bool = False,
    plan_file: Path | None,
    horizon_s: float,
    rebuild_s: float,
    as_json: bool,
    url: str | None,
    job: str | None,
) -> int:
    """Raises `CliError` for faults that do not fit the job."""
    links = {r: f for text in slow_link for r, f in [_ratio(text, "--slow-link")]}
    faults = parse_faults(kill, slow, required=not links)
    if file is not None:
        spec, plan, cluster, achieved = job_file.load(file), None, None, None
    else:
        spec, plan, cluster, achieved = run_loop(_live(gateway_url(url), job))
    cluster = cluster or Cluster.of(spec.parallel.num_devices)
    if unknown := sorted({*faults, *links} - set(cluster.ranks)):
        raise CliError(f"{spec.name} has no rank {unknown[0]}: its ranks are 0 to {max(cluster.ranks)}")
    model = ModelSpec(**spec.model.model_dump())
    workload = Workload.typical(spec.batch.micro_batches, spec.batch.tokens_per_micro_batch)
    cost = CostModel.for_model(model, bytes_per_element=8 if spec.dtype == "float64" else 4)
    try:
        if plan_file is not None:
            plan = ParallelPlan.from_dict(job_file.load_plan(plan_file))
        elif plan is None:
            p = spec.parallel
            plan = plan_initial(cluster, model, p.tp, p.pp, p.dp, workload.num_micro_batches)
        validate(plan, model, alive=cluster.ranks, num_micro_batches=workload.num_micro_batches)
        found = what_if(
            plan,
            model,
            cluster,
            faults,
            workload,
            clock=time.monotonic,
            assuming=Assumptions(
                cost, price=Price(horizon_s, rebuild_s), schedules=tuple(Schedule) if any_schedule else ()
            ),
            links=links,
        )
    except InvalidPlan as error:
        raise CliError(f"plan: {error}") from error
    except (Infeasible, ValueError) as error:
        raise CliError(str(error)) from error
    told = {"predicted_by": "nominal", "shares_cores": spec.shares_cores, **found.to_dict()}
    if achieved:
        told = {**paced(told, achieved / found.now), "predicted_by": "pace"}
    if as_json:
        print(json.dumps({"job": spec.name, "faults": {str(r): p for r, p in faults.items()}, **told}))
    else:
        print_answer(spec.name, told)
    return 0


def parse_faults(kill: Sequence[int], slow: Sequence[str], *, required: bool = True) -> dict[int, float]:
    """Rank -> p. Raises `CliError` for text that is not RANKxP with P between 0 and 1."""
    faults = dict.fromkeys(kill, 0.0)
    faults.update(_ratio(text, "--slow") for text in slow)
    if not faults and required:
        raise CliError("no fault given: use --kill RANK, --slow RANKxP or --slow-link RANKxF")
    return faults


def _ratio(text: str, option: str) -> tuple[int, float]:
    rank, _, ratio = text.partition("x")
    try:
        found = int(rank), float(ratio)
        if not 0.0 < found[1] <= 1.0 or found[0] < 0:
            raise ValueError
    except ValueError as error:
        letter = "F" if option == "--slow-link" else "P"
        raise CliError(f"{option} {text!r}: expected RANKx{letter} with 0 < {letter} <= 1, such as 7x0.5") from error
    return found


async def _live(url: str, job: str | None) -> tuple[JobSpec, ParallelPlan | None, Cluster | None, float | None]:
    """With the tokens/s that the job achieves under its plan, once that is known."""
    async with GatewayClient(url) as client:
        found = await pick_job(client, job)
        plans = [p for p in await client.plans(found.job) if p.epoch <= found.epoch]
        devices = await client.devices(found.job)
        newest = await client.iterations(found.job, after=max(0, found.committed - SEEN))
    spec = JobSpec.model_validate(found.spec)
    plan = ParallelPlan.from_dict(plans[-1].plan) if plans else None
    usable = set(plan.world) if plan is not None else {d.rank for d in devices}
    cluster = Cluster(tuple(Device(d.rank, d.node) for d in devices if d.rank in usable)) or None
    return spec, plan, cluster, settled_rate([row for row in newest if row.epoch == found.epoch])


def print_answer(name: str, told: Mapping[str, Any]) -> None:
    """For people; nothing is shown above its bound."""
    console = Console(highlight=False)
    basis = "at the job's pace" if told["predicted_by"] == "pace" else "by nominal constants"
    table = Table(
        box=None, pad_edge=False, header_style="dim", title=f"{name}: predicted {basis}", title_justify="left"
    )
    for column in ("", "tokens/s", "of now"):
        table.add_column(column, justify="right" if column else "left")
    now, best, bound = (told[f"{what}_tokens_per_s"] for what in ("now", "best", "bound"))
    rows = [("now", now), ("faults, nobody acts", told["do_nothing_tokens_per_s"]), ("faults, best plan", best)]
    if bound >= best:  # that of the plan in force: another arrangement of the same devices may beat it
        rows.append(("bound", bound))
    for what, tokens in rows:
        table.add_row(what, f"{tokens:,.0f}", f"{tokens / now:.1%}")
    console.print(table)
    if told["shares_cores"]:
        console.print("as if each worker had a device of its own: here they share processors", style="dim")
    decision = told["decision"]
    console.print(f"best plan: {decision['name']}: {decision['difference']}")
    even = "never" if told["break_even_s"] is None else f"after {told['break_even_s']:.1f} s"
    change_s, moved = told["change_s"] or 0.0, size(told["bytes_moved"])
    console.print(f"change: {change_s:.2f} s without training, {moved}; pays off {even}")
    for alternative in decision["alternatives"][:5]:
        console.print(f"  not taken: {alternative['name']}: {alternative['why_lost']}", style="dim")
