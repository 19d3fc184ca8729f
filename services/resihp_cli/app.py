"""The command tree. Each command imports what it needs when it runs, so that `resihp --help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resihp_cli import attach_app, govern_app, keys_app, local_app, operator_app, planning_app
from resihp_cli.options import Agents, Db, Headless, Job, Json, JsonFile, Run, Url, Verify

app = typer.Typer(
    name="resihp",
    help="Keeps hybrid-parallel PyTorch training running, in the same processes, when devices fail.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
inject_app = typer.Typer(no_args_is_help=True, help="Testing: inflict a fault on a device of a running job.")
plan_app = typer.Typer(no_args_is_help=True, help="Show the plan of a job, or switch the job to another one, live.")
app.add_typer(inject_app, name="inject")
app.add_typer(plan_app, name="plan")
model_app = typer.Typer(no_args_is_help=True, help="Trained models as files that others can read.")
app.add_typer(model_app, name="model")
local_app.register(app)
planning_app.register(app, plan_app)
attach_app.register(app)
govern_app.register(app)
operator_app.register(app)
keys_app.register(app)


@app.command(epilog="Example: resihp train examples/small.toml --verify")
def train(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.toml", help="What to train.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint in checkpoints.path, in any layout.")
    ] = False,
    url: Url = None,
    agents: Agents = 1,
    headless: Headless = False,
    verify: Verify = False,
    json: JsonFile = None,
) -> None:
    """Train the job of a file: on the system of `resihp up` (or --url) if one runs, else on one started for it."""
    from resihp_cli.commands.train import run_train

    raise typer.Exit(
        run_train(job_file, resume=resume, url=url, agents=agents, headless=headless, verify=verify, json_path=json)
    )


@app.command(epilog="Example: resihp status --json")
def status(url: Url = None, job: Job = None, json: Json = False) -> None:
    """Show jobs and devices of the running system."""
    from resihp_cli.commands.status import run_status

    raise typer.Exit(run_status(url=url, job=job, as_json=json))


@app.command(epilog="Example: resihp events --follow --json")
def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new events until Ctrl-C.")] = False,
    json: Json = False,
    job: Job = None,
    name: Annotated[str | None, typer.Option(help="Only events of this name, for example WorkerLost.")] = None,
    after: Annotated[int | None, typer.Option(min=0, help="Only events after this sequence; 0 from the start.")] = None,
    url: Url = None,
    db: Db = None,
    wait_s: Annotated[
        float, typer.Option("--wait", help="With --follow: wait this long for a system to appear.")
    ] = 0.0,
) -> None:
    """Print events: the stored ones, or with --follow new ones as they happen."""
    from resihp_cli.commands.events import run_events

    raise typer.Exit(
        run_events(follow=follow, as_json=json, job=job, name=name, after=after, url=url, database=db, wait_s=wait_s)
    )


@app.command(epilog="Example: resihp history --json")
def history(
    reconfiguration: Annotated[str | None, typer.Argument(metavar="[ID]", help="One change, in detail.")] = None,
    json: Json = False,
    format: Annotated[str, typer.Option("--format", help="table, json, csv or markdown.")] = "table",
    job: Job = None,
    run: Run = None,
    db: Db = None,
) -> None:
    """Show every incident and change of plan: cause, plans, alternatives, phases. Works after the run too."""
    from resihp_cli.commands.history import run_history

    raise typer.Exit(run_history(reconfiguration, form="json" if json else format, job=job, run=run, database=db))


@inject_app.command("kill", epilog="Example: resihp inject kill 3")
def inject_kill(rank: Annotated[int, typer.Argument(min=0)], url: Url = None, job: Job = None) -> None:
    """SIGKILL the worker of a rank."""
    from resihp_cli.commands.inject import run_inject

    raise typer.Exit(run_inject("kill", rank, url=url, job=job))


@inject_app.command("slow", epilog="Example: resihp inject slow 5 0.5 --for 30")
def inject_slow(
    rank: Annotated[int, typer.Argument(min=0)],
    factor: Annotated[float, typer.Argument(min=0.001, max=1.0, help="Speed from then on; 1 is healthy.")],
    for_s: Annotated[float, typer.Option("--for", min=0.0, metavar="S", help="Seconds; 0: for good.")] = 0.0,
    url: Url = None,
    job: Job = None,
) -> None:
    """Slow the device of a rank. The job's clock must be virtual ([clock] virtual = true)."""
    from resihp_cli.commands.inject import run_slow

    raise typer.Exit(run_slow(rank, factor, for_s, url=url, job=job))


@inject_app.command("slow-link", epilog="Example: resihp inject slow-link 0 2 0.25 --for 30")
def inject_slow_link(
    rank: Annotated[int, typer.Argument(min=0)],
    peer: Annotated[int, typer.Argument(min=0, help="The rank at the other end of the pipeline edge.")],
    factor: Annotated[float, typer.Argument(min=0.001, max=1.0, help="Speed from then on; 1 is healthy.")],
    for_s: Annotated[float, typer.Option("--for", min=0.0, metavar="S", help="Seconds; 0: for good.")] = 0.0,
    url: Url = None,
    job: Job = None,
) -> None:
    """Slow the pipeline edge between two ranks, both ways. The job's clock must be virtual ([clock] virtual = true)."""
    from resihp_cli.commands.inject import run_slow_link

    raise typer.Exit(run_slow_link((rank, peer), factor, for_s, url=url, job=job))


@inject_app.command("freeze", epilog="Example: resihp inject freeze 5")
def inject_freeze(rank: Annotated[int, typer.Argument(min=0)], url: Url = None, job: Job = None) -> None:
    """SIGSTOP the worker of a rank."""
    from resihp_cli.commands.inject import run_inject

    raise typer.Exit(run_inject("freeze", rank, url=url, job=job))


@inject_app.command("corrupt", epilog="Example: resihp inject corrupt 6")
def inject_corrupt(rank: Annotated[int, typer.Argument(min=0)], url: Url = None, job: Job = None) -> None:
    """Flip one bit of a rank's parameters: silent corruption. When fingerprints show that replicas differ, all go back
    to where they agreed, and the rank is named."""
    from resihp_cli.commands.inject import run_inject

    raise typer.Exit(run_inject("corrupt", rank, url=url, job=job))


@inject_app.command("restart", epilog="Example: resihp inject restart 3")
def inject_restart(rank: Annotated[int, typer.Argument(min=0)], url: Url = None, job: Job = None) -> None:
    """Start the worker of a lost rank again; it joins the running job."""
    from resihp_cli.commands.inject import run_restart

    raise typer.Exit(run_restart(rank, url=url, job=job))


@plan_app.command("show", epilog="Example: resihp plan show --json > plan.json")
def plan_show(
    url: Url = None,
    job: Job = None,
    epoch: Annotated[int | None, typer.Option(min=0, help="Epoch. Default: the newest.")] = None,
    json: Json = False,
) -> None:
    """Show the plan of a job; with --json in the form that `plan apply` takes."""
    from resihp_cli.commands.plan import run_show

    raise typer.Exit(run_show(url=url, job=job, epoch=epoch, as_json=json))


@plan_app.command("apply", epilog="Example: resihp plan apply plan.json --reason 'try TP 1'")
def plan_apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Plan as JSON.")],
    url: Url = None,
    job: Job = None,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "operator",
    wait: Annotated[bool, typer.Option(help="Wait until the job runs the plan.")] = True,
) -> None:
    """Switch the running job to a plan, live, between two iterations."""
    from resihp_cli.commands.plan import run_apply

    raise typer.Exit(run_apply(file, url=url, job=job, reason=reason, wait=wait))


@model_app.command("export", epilog="Example: resihp model export my-model --dtype bfloat16")
def model_export(
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="To be made.")],
    run: Run = None,
    dtype: Annotated[
        str | None, typer.Option(help="float64, float32 or bfloat16. Default: the job's.", show_default=False)
    ] = None,
) -> None:
    """Write the model of the newest finished run as a Hugging Face folder: config.json, safetensors, tokenizer."""
    from resihp_cli.commands.model import run_export

    raise typer.Exit(run_export(target, run=run, dtype=dtype))


@app.command(epilog="Example: resihp verify --random 50 --seed 7 --dtype float64 --json v.json")
def verify(
    run: Run = None,
    random: Annotated[
        int | None,
        typer.Option("--random", min=1, metavar="N", help="Make up N jobs with faults and changes."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sequences.")] = 7,
    only: Annotated[int | None, typer.Option("--only", min=0, metavar="I", help="Just sequence I of the seed.")] = None,
    system: Annotated[
        int, typer.Option("--system", min=0, metavar="M", help="And M further ones, each a whole demo.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="Of the sequences: float32 or float64.")] = "float64",
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the outcome as JSON; - prints it.", allow_dash=True)
    ] = None,
) -> None:
    """Train the newest finished run again, undisturbed in one process, and compare all parameters.

    With --random: make up jobs with changes of plan, deaths, freezes and returns, and compare each of them.
    """
    if random is not None:
        from resihp_cli.commands.trials import run_trials

        raise typer.Exit(run_trials(count=random, seed=seed, only=only, system=system, dtype=dtype, json_path=json))
    from resihp_cli.commands.verify import run_verify

    raise typer.Exit(run_verify(run=run, json_path=json))


@app.command(epilog="Example: resihp doctor --job examples/small.toml")
def doctor(
    job: Annotated[Path | None, typer.Option("--job", metavar="JOB.toml", help="Also check this job file.")] = None,
    url: Url = None,
    bus: Annotated[str | None, typer.Option("--bus", help="Check this NATS server.", metavar="URL")] = None,
    db: Annotated[str | None, typer.Option("--db", help="Check this database.", metavar="URL")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Check that the gateway could use this port.")
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine and what is configured; each failing line says how to mend it."""
    from resihp_cli.commands.doctor import run_doctor

    raise typer.Exit(run_doctor(job_file=job, url=url, bus=bus, database=db, port=port, as_json=json))


@app.command("validate-devices", epilog="Example: resihp validate-devices 5")
def validate_devices(
    ranks: Annotated[list[int] | None, typer.Argument(min=0, help="Suspects. Default: everybody.")] = None,
    url: Url = None,
    job: Job = None,
) -> None:
    """Probe devices and links of a running job between two iterations, and say which one is slow."""
    from resihp_cli.commands.validate_devices import run_validate_devices

    raise typer.Exit(run_validate_devices(ranks or [], url=url, job=job))


@app.command(epilog="Example: resihp replay run.csv --json")
def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded run, CSV or JSONL; see docs/detection.md.")],
    json: Json = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="OUT.png", help="Draw it (needs matplotlib).", dir_okay=False)
    ] = None,
    warmup: Annotated[
        int | None, typer.Option("--warmup", min=5, help="Iterations to learn from.  [default: 20]", show_default=False)
    ] = None,
) -> None:
    """Ask the detector about a run that is over: which device was slow, when, by how much, how sure."""
    from resihp_cli.commands.replay import run_replay

    raise typer.Exit(run_replay(file, as_json=json, plot=plot, warmup=warmup))


@app.command("who-is-slow", epilog="Example: resihp who-is-slow run.csv")
def who_is_slow(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Recorded run. Default: the running job.")
    ] = None,
    url: Url = None,
    job: Job = None,
) -> None:
    """Say in one line who is slow; exit code 1 if somebody is."""
    from resihp_cli.commands.who_is_slow import run_who_is_slow

    raise typer.Exit(run_who_is_slow(file, url=url, job=job))
