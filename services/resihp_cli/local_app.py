"""The commands that start everything on this machine: `resihp demo` and `resihp up`."""

from __future__ import annotations

from typing import Annotated

import typer

from resihp_cli.options import Agents, Bus, Headless, JsonFile, Keys, Port, Verify


def demo(
    iterations: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 40,
    kill: Annotated[
        list[str] | None,
        typer.Option(
            "--kill",
            metavar="RANK@K[:POINT]",
            help="SIGKILL a rank in iteration K. POINT: compute, gradient, vote, optimizer.",
        ),
    ] = None,
    freeze: Annotated[
        list[str] | None, typer.Option("--freeze", metavar="RANK@K[:POINT]", help="SIGSTOP a rank in iteration K.")
    ] = None,
    slow: Annotated[
        list[str] | None,
        typer.Option(
            "--slow",
            metavar="RANK@KxP",
            help="From iteration K on a rank computes at P of its speed; switches the virtual clock on.",
        ),
    ] = None,
    slow_for: Annotated[
        float, typer.Option("--for", min=0.0, metavar="S", help="--slow lasts so many seconds; 0: for good.")
    ] = 0.0,
    device_flops: Annotated[
        float, typer.Option("--device-flops", min=1e6, metavar="F", help="Operations/s of a virtual device.")
    ] = 2e9,
    virtual_clock: Annotated[
        bool, typer.Option("--virtual-clock", help="Devices compute at a nominal speed, whatever the host.")
    ] = False,
    switch: Annotated[
        list[str] | None, typer.Option("--switch", metavar="FILE@K", help="Ask for the plan in FILE after iteration K.")
    ] = None,
    rejoin: Annotated[
        list[str] | None,
        typer.Option("--rejoin", metavar="RANK@K", help="Start a lost rank again after iteration K; it joins the job."),
    ] = None,
    kill_agent: Annotated[
        list[str] | None,
        typer.Option("--kill-agent", metavar="AGENT@K", help="SIGKILL an agent and its workers after iteration K."),
    ] = None,
    rejoin_agent: Annotated[
        list[str] | None,
        typer.Option("--rejoin-agent", metavar="AGENT@K", help="Start a killed agent again after iteration K."),
    ] = None,
    snapshots: Annotated[
        int, typer.Option(min=0, metavar="K", help="Copy the state to other ranks every K iterations; 0: never.")
    ] = 10,
    no_fault: Annotated[bool, typer.Option("--no-fault", help="Train without any fault.")] = False,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel degree.")] = 2,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline-parallel degree.")] = 2,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel degree.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of data and parameters.")] = 7,
    data: Annotated[
        str | None, typer.Option(help="Folder of text files, text file, or JSONL with a text field.")
    ] = None,
    agents: Agents = 1,
    bus: Bus = None,
    port: Port = 0,
    keys: Keys = False,
    headless: Headless = False,
    verify: Verify = False,
    json: JsonFile = None,
) -> None:
    """Train a small model on this machine, lose a device in the middle, keep training, and prove it.

    Without --kill, --freeze, --switch or --no-fault, rank 3 is killed in the middle of the run.
    """
    from resihp_cli.commands.demo import run_demo

    raise typer.Exit(
        run_demo(
            iterations=iterations,
            kill=kill or [],
            freeze=freeze or [],
            slow=slow or [],
            slow_for_s=slow_for,
            device_flops=device_flops,
            virtual_clock=virtual_clock,
            switch=switch or [],
            rejoin=rejoin or [],
            kill_agent=kill_agent or [],
            rejoin_agent=rejoin_agent or [],
            snapshots=snapshots,
            no_fault=no_fault,
            dtype=dtype,
            tp=tp,
            pp=pp,
            dp=dp,
            seed=seed,
            data=data,
            agents=agents,
            bus=bus,
            port=port,
            keys=keys,
            headless=headless,
            verify=verify,
            json_path=json,
        )
    )


def up(
    agents: Annotated[int, typer.Option("--agents", min=0, max=64, help="Local agents; 0 if they run elsewhere.")] = 1,
    devices: Annotated[int, typer.Option(min=1, help="Devices over all local agents.")] = 8,
    bus: Bus = None,
    db: Annotated[str | None, typer.Option("--db", help="Database URL. Default: SQLite in the run folder.")] = None,
    port: Port = 0,
    keys: Keys = False,
) -> None:
    """Start the services and agents on this machine and keep them running until Ctrl-C; train with `resihp train`."""
    from resihp_cli.commands.up import run_up

    raise typer.Exit(run_up(agents=agents, devices=devices, bus=bus, database=db, port=port, keys=keys))


def register(app: typer.Typer) -> None:
    """Add the commands to the tree."""
    example = "Example: resihp demo --headless --iterations 40 --kill 3@15 --dtype float64 --verify --json out.json"
    app.command(epilog=example)(demo)
    app.command(epilog="Example: resihp up --agents 2 --devices 8 --port 8765")(up)
