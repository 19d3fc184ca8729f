"""`resihp demo`: everything on this machine, one scripted failure, and the proof."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime
from pathlib import Path
from typing import Any

from resihp_cli.client import GatewayClient
from resihp_cli.commands.running import run as run_loop
from resihp_cli.commands.training import TrainingRequest, console_for, train
from resihp_cli.errors import CliError
from resihp_cli.fault_script import parse_fault, parse_node_step, parse_rejoin, parse_slow, parse_switch
from resihp_cli.job_file import build, check_data
from resihp_cli.json_file import check_json_path
from resihp_cli.run_folder import create
from resihp_cli.supervisor import Supervisor, SupervisorOptions, deal_slots
from resihp_messages import JobSpec

DEVICE_FLOPS = 2e9
"""Of a virtual device of the demo: half of the job file's default, so that what the host adds (collectives of eight
processes on few cores) is small against the computing, and a slow device shows."""


def run_demo(
    *,
    headless: bool,
    verify: bool,
    json_path: Path | None,
    switch: list[str],
    rejoin: list[str],
    kill_agent: list[str],
    rejoin_agent: list[str],
    agents: int,
    bus: str | None,
    port: int,
    keys: bool = False,
    **job: Any,
) -> int:
    """Parse, run, judge. Returns 0 if everything asked for holds, else 1."""
    switches = tuple(sorted((parse_switch(text) for text in switch), key=lambda s: s.iteration))
    rejoins = tuple(parse_rejoin(text) for text in rejoin)
    steps = [parse_node_step("kill", text) for text in kill_agent]
    steps += [parse_node_step("start", text) for text in rejoin_agent]
    nodes = tuple(sorted(steps, key=lambda s: s.iteration))
    if unknown := sorted({s.agent for s in nodes if s.agent >= agents}):
        raise CliError(f"there is no agent {unknown[0]}: with --agents {agents} they are numbered from 0")
    spec = demo_spec(**job, switched=bool(switches or nodes))
    check_data(spec.data.path)
    check_json_path(json_path)
    deal_slots(spec.parallel.num_devices, agents)
    request = TrainingRequest(spec, switches, rejoins, nodes, verify=verify, headless=headless, json_path=json_path)
    options = SupervisorOptions(spec.parallel.num_devices, agents, gateway_port=port, bus_url=bus, keys=keys)
    return run_loop(train_locally(request, options))


async def train_locally(request: TrainingRequest, options: SupervisorOptions) -> int:
    """Start a system for one job, train it, stop the system."""
    console = console_for(request.headless)
    folder = create(datetime.now())
    console.print(f"run {folder.id}: {request.spec.parallel.num_devices} devices, logs in {folder.logs}")
    async with Supervisor(options, folder, note=console.print) as supervisor:
        supervisor.set_job(request.spec.name)
        keeper = asyncio.create_task(supervisor.run_until_cancelled())
        try:
            async with GatewayClient(supervisor.info.gateway_url) as client:
                outcome = await train(request, client, folder, console, supervisor.act_on_node)
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
    return 1 if outcome.failures else 0


def demo_spec(
    *,
    iterations: int,
    kill: list[str],
    freeze: list[str],
    slow: list[str] | None = None,
    slow_for_s: float = 0.0,
    device_flops: float = DEVICE_FLOPS,
    virtual_clock: bool = False,
    no_fault: bool,
    dtype: str,
    tp: int,
    pp: int,
    dp: int,
    seed: int,
    data: str | None,
    snapshots: int = 10,
    switched: bool = False,
) -> JobSpec:
    """The job of the options. Raises `CliError` that names the rule which they break."""
    faults = [parse_fault("kill", text) for text in kill] + [parse_fault("freeze", text) for text in freeze]
    faults += [parse_slow(text).model_copy(update={"for_s": slow_for_s}) for text in slow or ()]
    if no_fault and faults:
        raise CliError("--no-fault excludes --kill, --freeze and --slow")
    if not faults and not no_fault and not switched:
        faults = [parse_fault("kill", f"{min(3, tp * pp * dp - 1)}@{max(iterations // 2, 1)}")]
    return build(
        {
            "name": "demo",
            "seed": seed,
            "iterations": iterations,
            "dtype": dtype,
            "parallel": {"tp": tp, "pp": pp, "dp": dp},
            "data": {"path": str(Path(data).absolute()) if data is not None else None},
            "faults": [f.model_dump(mode="json") for f in faults],
            "clock": {"virtual": virtual_clock or bool(slow), "flops_per_s": device_flops},
            "snapshots": {"every": snapshots},
        },
        origin="demo",
    )
