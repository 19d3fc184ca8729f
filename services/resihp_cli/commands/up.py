"""`resihp up`: services and agents on this machine until Ctrl-C."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console

from resihp_cli.commands.running import run as run_loop
from resihp_cli.run_folder import create
from resihp_cli.supervisor import Supervisor, SupervisorOptions


def run_up(*, agents: int, devices: int, bus: str | None, database: str | None, port: int, keys: bool = False) -> int:
    """Runs until interrupted, then stops everything in order; returns 0."""
    options = SupervisorOptions(
        devices if agents else 0, agents, gateway_port=port, bus_url=bus, database_url=database, keys=keys
    )
    try:
        run_loop(_serve(options))
    except KeyboardInterrupt:
        return 0
    return 0


async def _serve(options: SupervisorOptions) -> None:
    console = Console(highlight=False, soft_wrap=True)
    folder = create(datetime.now())
    async with Supervisor(options, folder, note=console.print) as supervisor:
        info = supervisor.info
        console.print(f"gateway  {info.gateway_url}  (the dashboard; API description: {info.gateway_url}/docs)")
        console.print(f"bus      {info.bus_url}")
        if options.keys:
            console.print(f"keys     {folder.path / 'keys'}  (programs that follow events: operator/seed.nk)")
        console.print(f"logs     {folder.logs}")
        console.print("train with `resihp train JOB.toml`; Ctrl-C stops everything in order")
        try:
            await supervisor.run_until_cancelled()
        finally:
            console.print("stopping")
