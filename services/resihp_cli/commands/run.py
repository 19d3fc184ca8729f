"""`resihp run -- COMMAND`: the command as it is, with hooks in its environment and an agent that listens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console

import resihp_attach
from resihp_attach import place, stuck, wire
from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import running_local
from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_cli.run_folder import RunFolder, create
from resihp_cli.supervisor import Supervisor, SupervisorOptions
from resihp_gateway.models import IncidentView

_LAST_WORDS_S = 5.0
"""After the command's end, what its ranks said last is waited for."""
_TERMINATE_S = 10.0
_FLIGHT_RECORDER_ENTRIES = "256"
_SITE = Path(resihp_attach.__file__).parent / "site"


@dataclass(frozen=True)
class Watching:
    """Where an agent of this machine listens, and where its findings are read."""

    socket_path: Path
    gateway_url: str


def run_command(command: Sequence[str], *, name: str | None, axes: str, hang_s: float, port: int) -> int:
    """Returns the command's exit status (128 + n for signal n). Raises `CliError` for arguments that make no sense."""
    try:
        place.parse_axes(axes)
    except ValueError as error:
        raise CliError(f"--axes: {error}") from error
    job = name or default_name(command, datetime.now())
    if place.job_name({place.JOB: job}) != job:
        raise CliError(f"--name {job!r}: up to 64 letters, digits, - and _")
    return run_loop(_run(tuple(command), job, axes, hang_s, port))


def default_name(command: Sequence[str], now: datetime) -> str:
    """The script's name and the time: unique on this machine, as names of jobs must be.

    >>> default_name(["torchrun", "--nproc-per-node", "4", "dir/my train.py"], datetime(2026, 1, 2, 3, 4, 5))
    'my-train-0102-030405'
    """
    script = next((part for part in command if part.endswith(".py")), command[0])
    return place.job_name({place.JOB: Path(script).stem[:48]}) + now.strftime("-%m%d-%H%M%S")


def environment(job: str, watching: Watching, axes: str, hang_s: float, base: Mapping[str, str]) -> dict[str, str]:
    """What makes the hooks load in every Python below the command."""
    paths = [str(_SITE), *filter(None, [base.get("PYTHONPATH")])]
    return {
        stuck.BUFFER: _FLIGHT_RECORDER_ENTRIES,  # the user's own value wins
        **base,
        "PYTHONPATH": os.pathsep.join(paths),
        place.SOCKET: str(watching.socket_path),
        place.JOB: job,
        place.AXES: axes,
        place.HANG_S: str(hang_s),
    }


async def _run(command: tuple[str, ...], job: str, axes: str, hang_s: float, port: int) -> int:
    console = Console(highlight=False, soft_wrap=True, stderr=True)
    async with contextlib.AsyncExitStack() as stack:
        try:
            watching = await stack.enter_async_context(_system(port, console))
            line = stack.enter_context(_launcher_line(watching, job))
        except (CliError, OSError) as error:
            console.print(f"resihp: cannot watch: {error}; the command runs unobserved")
            return await _execute(command, dict(os.environ))
        console.print(f"resihp: job {job}; findings: resihp events --job {job}")
        code = await _execute(command, environment(job, watching, axes, hang_s, os.environ))
        with contextlib.suppress(OSError):  # an agent that is gone changes nothing about the command
            line.sendall(wire.encode({"type": "launcher_bye", "exit_code": code}))
        await _report(watching, job, console)
    return code if code >= 0 else 128 - code


@asynccontextmanager
async def _system(port: int, console: Console) -> AsyncIterator[Watching]:
    """The one that runs on this machine, if it listens; else an own one."""
    folder = running_local()
    if folder is not None and (found := _listening(folder)) is not None:
        yield found
        return
    folder = create(datetime.now())
    options = SupervisorOptions(num_devices=1, num_agents=1, gateway_port=port, launches=False)
    async with Supervisor(options, folder):
        console.print(f"resihp: watching; gateway {folder.read().gateway_url}, logs {folder.logs}")
        found = _listening(folder)
        if found is None:
            raise CliError(f"no agent listens in {folder.path}")
        yield found


def _listening(folder: RunFolder) -> Watching | None:
    path = next(iter(sorted(folder.path.glob("agents/*/attach.sock"))), None)
    return Watching(path, folder.read().gateway_url) if path is not None else None


@contextlib.contextmanager
def _launcher_line(watching: Watching, job: str) -> Iterator[socket.socket]:
    """As long as it is open, the agent expects that the launcher may start ranks again. Raises OSError."""
    with wire.connect(str(watching.socket_path), 2.0) as line:
        line.sendall(wire.encode({"type": "launcher", "job": job}))
        yield line


async def _execute(command: tuple[str, ...], env: dict[str, str]) -> int:
    """The command on this terminal. If this process is asked to end, so is the command. Raises `CliError`."""
    try:
        process = await asyncio.create_subprocess_exec(*command, env=env)
    except OSError as error:
        raise CliError(f"{command[0]}: {error.strerror}") from error
    try:
        return await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _TERMINATE_S)
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise


async def _report(watching: Watching, job: str, console: Console) -> None:
    """One line per finding."""
    try:
        async with GatewayClient(watching.gateway_url) as client:
            state = await _ended(client, job)
            incidents = await client.incidents(job) if state is not None else []
    except CliError as error:
        console.print(f"resihp: the findings cannot be read: {error}")
        return
    if state is None:
        console.print("resihp: no rank of a torch job reported")
        return
    console.print(f"resihp: job {job} {state}, {len(incidents)} finding{'s' if len(incidents) != 1 else ''}")
    for incident in incidents:
        console.print(f"resihp:   {_line(incident)}")


async def _ended(client: GatewayClient, job: str) -> str | None:
    """State and length of the job once it has ended, or after a while; None if it is not known."""
    found: str | None = None
    deadline_s = asyncio.get_running_loop().time() + _LAST_WORDS_S
    while asyncio.get_running_loop().time() < deadline_s:
        view = next((j for j in await client.jobs() if j.job == job), None)
        if view is not None:
            reason = f" ({view.reason})" if view.reason else ""
            found = f"{view.state} after {view.committed} iterations{reason}"
            if view.state in ("finished", "failed", "stopped"):
                break
        await asyncio.sleep(0.2)
    return found


def _line(incident: IncidentView) -> str:
    """What, who, since when, and what to do."""
    ranks = ", ".join(map(str, incident.ranks)) or "-"
    parts = [f"{incident.kind.replace('_', ' ')}: rank {ranks}"]
    if (first := incident.evidence.get("first_iteration")) is not None:
        parts.append(f"from iteration {first}")
    if (p := incident.verdict.get("p")) and isinstance(p, float):
        parts.append(f"at {100 * p:.0f} % of its speed")
    if incident.evidence.get("error"):
        parts.append(str(incident.evidence["error"]))
    if incident.resolution:
        parts.append(f"over: {incident.resolution}")
    return "; ".join((*parts, incident.advice))
