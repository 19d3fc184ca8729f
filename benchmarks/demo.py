"""One `resihp demo` as a user runs it: a child process, its JSON, and a view of it while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resihp_cli.client import GatewayClient, is_temporary
from resihp_cli.errors import CliError
from resihp_cli.run_folder import RunFolder, RunInfo

RUN_LIMIT_S = 1500.0
"""A run that takes longer hangs."""
JOB = "demo"


class DemoFailed(Exception):
    """The demo did not exit with 0; the text holds its last lines."""


@dataclass
class RunningDemo:
    """A demo that runs in a home of its own (`RESIHP_HOME`), so that it meets no other."""

    process: asyncio.subprocess.Process
    home: Path
    document: Path
    log: Path

    async def info(self) -> RunInfo:
        """Addresses and process ids, as soon as they are published."""
        while True:
            self.check_alive()
            with contextlib.suppress(OSError, CliError):
                name = (self.home / "latest").read_text().strip()
                return RunFolder(self.home / "runs" / name).read()
            await asyncio.sleep(0.05)

    async def committed(self, client: GatewayClient) -> int:
        """Iterations committed so far; 0 while the job or its gateway is not there."""
        try:
            found = await client.iterations(JOB)
        except CliError as error:
            if not is_temporary(error) and "404" not in str(error):
                raise
            return 0
        return found[-1].iteration if found else 0

    async def reach(self, client: GatewayClient, iteration: int) -> None:
        """Wait until this iteration is committed. Raises `DemoFailed` if the demo ends before."""
        while await self.committed(client) < iteration:
            self.check_alive()
            await asyncio.sleep(0.05)

    def check_alive(self) -> None:
        if self.process.returncode is not None:
            raise DemoFailed(f"the demo ended with {self.process.returncode}\n{self.tail()}")

    async def result(self, *, must_hold: bool = True) -> dict[str, Any]:
        """The document of `--json`. Raises `DemoFailed` unless the demo says that every promise holds."""
        code = await self.process.wait()
        if code and (must_hold or not self.document.exists()):
            raise DemoFailed(f"the demo ended with {code}\n{self.tail()}")
        document: dict[str, Any] = json.loads(self.document.read_text())
        return document

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.asynccontextmanager
async def demo(arguments: Sequence[str], *, command_name: str = "demo") -> AsyncIterator[RunningDemo]:
    """Start `resihp demo --headless --json ... <arguments>` (or `train` instead of `demo`); what still runs
    on exit is interrupted and waited for."""
    with tempfile.TemporaryDirectory(prefix="resihp-bench-") as folder:
        home = Path(folder)
        log = home / "demo.log"
        with log.open("wb") as out:
            command = (sys.executable, "-m", "resihp_cli", command_name, "--headless", "--json", str(home / "out.json"))
            process = await asyncio.create_subprocess_exec(
                *command,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "RESIHP_HOME": folder, "OMP_NUM_THREADS": "1"},
            )
        try:
            async with asyncio.timeout(RUN_LIMIT_S):
                yield RunningDemo(process, home, home / "out.json", log)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                try:
                    await asyncio.wait_for(process.wait(), 30.0)
                except TimeoutError:
                    process.kill()
                    await process.wait()


async def run_demo(*arguments: str) -> dict[str, Any]:
    """A whole demo; its document. Raises `DemoFailed`."""
    async with demo(arguments) as running:
        return await running.result()
