"""One compose project of its own, and how its checks wait and speak: what the parts of `make compose-check` share."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from resihp_cli.client import is_temporary
from resihp_cli.errors import CliError

ROOT = Path(__file__).parents[1]


class CheckFailed(Exception):
    """A check does not hold; the text says which and what was seen."""


def expect(holds: bool, what: str, seen: object = "") -> None:
    """Print the check and its figure, or raise `CheckFailed`."""
    if not holds:
        raise CheckFailed(f"{what}: saw {seen!r}")
    print(f"  ok  {what}" + (f": {seen}" if seen != "" else ""), flush=True)


class Compose:
    """One compose project of its own: name, port and secrets are fresh, so that it meets no other."""

    def __init__(self) -> None:
        self._command = engine()
        self.port = _free_port()
        self._environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": f"resihpcheck{os.getpid()}",
            "RESIHP_PORT": str(self.port),
            "POSTGRES_PASSWORD": "p" + secrets.token_hex(16),
            # A container engine without a route of its own still builds through the machine's network.
            "RESIHP_BUILD_NETWORK": os.environ.get("RESIHP_BUILD_NETWORK", "host"),
        }

    def run(self, *arguments: str, timeout_s: float = 120.0, quiet: bool = True, check: bool = True) -> str:
        """One compose command. Raises `CheckFailed` with its last words if it fails."""
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=ROOT,
            env=self._environment,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode:
            raise CheckFailed(f"{' '.join(arguments)}: status {done.returncode}\n{(done.stderr or '')[-2000:]}")
        return done.stdout or ""

    def python(self, service: str, program: str) -> str:
        """What a Python program prints inside a running service's container."""
        return self.run("exec", "-T", service, "python", "-c", program).strip()


def engine() -> list[str]:
    if (
        shutil.which("docker")
        and not subprocess.run(
            ["docker", "compose", "version"], check=False, capture_output=True, timeout=20
        ).returncode
    ):
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise CheckFailed("no Docker Compose here: install the docker compose plugin or docker-compose, and start dockerd")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def eventually(
    condition: Callable[[], Awaitable[Any]], what: str, *, timeout_s: float, every_s: float = 0.25
) -> Any:
    """The first true value of `condition`; a gateway that is not there yet counts as not true."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            value = await condition()
        except CliError as error:
            if not is_temporary(error):
                raise
            value = None
        if value:
            return value
        if time.monotonic() > deadline:
            raise CheckFailed(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(every_s)
