"""The commands that predict: `resihp whatif`, `resihp simulate`, `resihp plan init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path | None, typer.Argument(metavar="[JOB.toml]", help="Described job. Default: the live one.")]
Kill = Annotated[list[int] | None, typer.Option("--kill", min=0, metavar="RANK", help="This device is lost.")]
Slow = Annotated[
    list[str] | None, typer.Option("--slow", metavar="RANKxP", help="This device runs at P of its speed: 7x0.5.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Nodes = Annotated[str, typer.Option("--cluster", metavar="NODESxDEVICES", help="4x8, or 2x8,2x8@0.5: slower ones.")]
Model = Annotated[
    str, typer.Option("--model", help="llama2-7b, -13b, -30b, -70b, a Hugging Face folder, or a JOB.toml.")
]


def whatif(
    job_file: JobFile = None,
    kill: Kill = None,
    slow: Slow = None,
    slow_link: Annotated[
        list[str] | None,
        typer.Option("--slow-link", metavar="RANKxF", help="This device's way out has F of its bandwidth: 7x0.1."),
    ] = None,
    any_schedule: Annotated[
        bool, typer.Option("--any-schedule", help="The plan may change the schedule, too, even to a split backward.")
    ] = False,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="Start from this plan.")] = None,
    horizon: Annotated[float, typer.Option(min=1.0, help="Seconds for which the gain counts.")] = 1800.0,
    rebuild: Annotated[float, typer.Option(min=0.0, help="Seconds to rebuild process groups.")] = 2.0,
    json: Json = False,
    url: Annotated[str | None, typer.Option("--url", help="Gateway of the live job.", metavar="URL")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Live job. Default: the newest.")] = None,
) -> None:
    """Predict what faults would cost: now, if nobody acts, with the best plan; pause, bytes, break-even time."""
    from resihp_cli.commands.whatif import run_whatif

    raise typer.Exit(
        run_whatif(
            job_file, kill or [], slow or [], slow_link=slow_link or [], any_schedule=any_schedule, plan_file=plan,
            horizon_s=horizon, rebuild_s=rebuild, as_json=json, url=url, job=job,
        )
    )  # fmt: skip


def init(
    model: Model = "llama2-7b",
    cluster: Nodes = "2x8",
    micro_batches: Annotated[int, typer.Option(min=1, help="Of the global batch.")] = 64,
    tokens: Annotated[int, typer.Option(min=1, help="Per micro-batch.")] = 4096,
    memory_gb: Annotated[float, typer.Option(min=0.1, help="Usable per device.")] = 74.0,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON, as `plan apply` takes it.")] = False,
) -> None:
    """Choose TP, PP, DP, layers and micro-batches for a healthy cluster (cost model of A100 nodes)."""
    from resihp_cli.commands.forecast import run_init

    raise typer.Exit(
        run_init(model, cluster, micro_batches=micro_batches, tokens=tokens, memory_gb=memory_gb, as_json=json)
    )


def simulate(
    model: Model = "llama2-13b",
    cluster: Nodes = "4x8",
    faults: Annotated[
        str, typer.Option(help="`generate`, or a CSV file with start_h, end_h, node, class per line.")
    ] = "generate",
    policy: Annotated[str, typer.Option(help="Names, separated by commas.")] = "restart,s-recycle,s-oobleck,resihp",
    days: Annotated[float, typer.Option(min=0.01, help="Length of the run.")] = 30.0,
    start_day: Annotated[float, typer.Option(min=0.0, help="Where in the trace to begin.")] = 0.0,
    micro_batches: Annotated[int, typer.Option(min=1, help="Of the global batch.")] = 64,
    tokens: Annotated[int, typer.Option(min=1, help="Per micro-batch.")] = 4096,
    seed: Annotated[int, typer.Option(min=0, help="Of generated faults.")] = 0,
    json: Json = False,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write throughput over time.")] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw it, as .png, .svg or .pdf (extra `plot`).")
    ] = None,
) -> None:
    """Simulate a job over days or months of faults and repairs, under several policies."""
    from resihp_cli.commands.forecast import run_simulate

    raise typer.Exit(
        run_simulate(
            model, cluster, faults, policy, days=days, start_day=start_day, micro_batches=micro_batches,
            tokens=tokens, seed=seed, as_json=json, csv_file=csv, picture=picture,
        )
    )  # fmt: skip


def register(app: typer.Typer, plan_app: typer.Typer) -> None:
    """Add the commands to the tree."""
    app.command(epilog="Example: resihp whatif examples/small.toml --slow 7x0.5 --kill 3")(whatif)
    app.command(epilog="Example: resihp simulate --model llama2-13b --cluster 4x8 --days 30 --policy restart,resihp")(
        simulate
    )
    plan_app.command("init", epilog="Example: resihp plan init --model llama2-13b --cluster 4x8")(init)
