"""The common part of `demo` and `train`: submit a job, follow it, collect the facts, judge them, report."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from resihp_cli.client import GatewayClient, is_temporary
from resihp_cli.commands.steps import NodeAction, Steps
from resihp_cli.commands.verify import run_verification
from resihp_cli.errors import CliError
from resihp_cli.fault_script import NodeStep, Rejoin, Switch
from resihp_cli.job_file import load_plan
from resihp_cli.outcome import Outcome, RunFacts, judge
from resihp_cli.run_folder import RunFolder, job_folder, write_json
from resihp_cli.view.live import LiveView
from resihp_cli.view.plain import PlainView
from resihp_cli.view.report import print_report
from resihp_cli.watch import JobWatch
from resihp_cli.worker_probe import WorkerProbe
from resihp_messages import JobSpec

SUBMIT_PATIENCE_S = 20.0
"""A scheduler needs a moment to become leader."""


@dataclass(frozen=True)
class TrainingRequest:
    """What to train and what to do with it."""

    spec: JobSpec
    switches: tuple[Switch, ...] = ()
    rejoins: tuple[Rejoin, ...] = ()
    nodes: tuple[NodeStep, ...] = ()
    """For agents of this machine; in order of iteration."""
    verify: bool = False
    headless: bool = False
    json_path: Path | None = None


async def train(
    request: TrainingRequest,
    client: GatewayClient,
    folder: RunFolder | None,
    console: Console,
    on_node: NodeAction | None = None,
) -> Outcome:
    """Submit and follow the job to its end; print the report and write the outcome. Raises `CliError`."""
    spec = request.spec
    if folder is not None and spec.output_dir is None:
        spec = spec.model_copy(update={"output_dir": str(job_folder(folder, spec.name))})
    plans = [(switch, load_plan(switch.path)) for switch in request.switches]
    await submit(client, spec)
    watch = JobWatch(client, spec.name, WorkerProbe())
    live = not request.headless and console.is_terminal
    view = LiveView(watch, console) if live else PlainView(watch)
    steps = Steps(client, watch, view.note, plans=plans, rejoins=request.rejoins, nodes=request.nodes, on_node=on_node)
    with view:
        try:
            await watch.run(
                on_event=view.on_event,
                on_iterations=view.on_iterations,
                on_poll=steps.advance,
            )
        except (asyncio.CancelledError, KeyboardInterrupt):
            view.note("stopping")
            raise
    for step in steps.left():
        view.note(f"not asked for, since the job ended first: {step}")
    facts = await collect(client, watch, spec, len(request.switches), request.verify)
    facts = replace(facts, steps_left=tuple(steps.left()))
    if folder is not None:
        _keep(job_folder(folder, spec.name), facts)
    if request.verify:
        facts = await _verified(facts, view.note)
    outcome = judge(facts)
    print_report(console, outcome)
    if folder is not None:
        write_json(job_folder(folder, spec.name) / "outcome.json", outcome.document)
    if request.json_path is not None:
        write_json(request.json_path.absolute(), outcome.document)
    return outcome


async def submit(client: GatewayClient, spec: JobSpec) -> None:
    """Submit, with patience for a scheduler that is not the leader yet."""
    deadline = asyncio.get_running_loop().time() + SUBMIT_PATIENCE_S
    while True:
        try:
            await client.submit(spec)
            return
        except CliError as error:
            if not is_temporary(error) or asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.1)


async def collect(client: GatewayClient, watch: JobWatch, spec: JobSpec, switches: int, verify: bool) -> RunFacts:
    """Everything that the API knows once the job is over."""
    iterations = watch.iterations
    deadline = asyncio.get_running_loop().time() + 3.0
    # The last reports travel beside the acknowledgement that ended the job: give them a moment.
    while watch.job and watch.job.state == "finished" and _last(iterations) < watch.job.committed:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(0.1)
        await watch.refresh()
    job, devices, incidents, reconfigurations, plans = await asyncio.gather(
        client.job(spec.name),
        client.devices(spec.name),
        client.incidents(spec.name),
        client.reconfigurations(spec.name),
        client.plans(spec.name),
    )
    return RunFacts(
        spec=spec,
        job=job,
        devices=devices,
        incidents=incidents,
        reconfigurations=reconfigurations,
        plans=plans,
        iterations=await client.all_iterations(spec.name),
        probe=watch.probe,
        decisions=await client.decisions(spec.name),
        switches_asked=switches,
        parity_asked=verify,
        versions=versions(),
    )


def _last(iterations: Sequence[Any]) -> int:
    return iterations[-1].iteration if iterations else 0


def _keep(folder: Path, facts: RunFacts) -> None:
    """What `resihp verify` needs later: the job and its last plan."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "spec.json", facts.spec.model_dump(mode="json"))
    if facts.plans:
        newest = next((p for p in reversed(facts.plans) if p.epoch == facts.job.epoch), facts.plans[-1])
        write_json(folder / "plan.json", newest.plan)


async def _verified(facts: RunFacts, note: Callable[[str], None]) -> RunFacts:
    if facts.job.state != "finished" or facts.spec.output_path is None:
        return replace(facts, parity={"max_abs_diff": None, "error": "no finished result to compare"})
    note("verifying: training the same job undisturbed in one process")
    return replace(facts, parity=await run_verification(facts.spec.output_path, note))


def versions() -> dict[str, str]:
    """Versions that a reader of the numbers needs."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("resihp", "torch", "nats-py", "numpy", "sqlalchemy", "pydantic"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def console_for(headless: bool) -> Console:
    """Standard output; without colour codes and width guesses when it is not a terminal."""
    return Console(file=sys.stdout, highlight=False, force_terminal=False if headless else None, soft_wrap=True)
