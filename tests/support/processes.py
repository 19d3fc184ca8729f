"""Service processes of the product in tests: started with settings from the environment, ended by their own pid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.waiting import wait_for


class ServiceProcess:
    """`python -m MODULE` with these variables, its output in a file."""

    def __init__(self, module: str, folder: Path, **variables: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / "output.txt"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RESIHP_")}
        environment |= {name: str(value) for name, value in variables.items()}
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module], env=environment, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def stop(self, timeout_s: float = 120.0) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended(timeout_s)

    async def ended(self, timeout_s: float = 120.0) -> int:
        """Wait for the end; the exit code."""
        return await asyncio.to_thread(self.process.wait, timeout_s)

    async def ready(self, timeout_s: float = 20.0) -> None:
        await wait_for(lambda: self.said("ready"), timeout_s, what=f"ready in {self.output}")

    def said(self, event: str) -> bool:
        """Whether a log line with this event is there."""
        return any(line.get("event") == event for line in self.lines())

    def lines(self) -> list[dict[str, Any]]:
        """Log lines so far."""
        found = []
        for line in self.output.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def complaint(self) -> str:
        """The one line for a person."""
        found = [line for line in self.output.read_text().splitlines() if line.startswith("resihp ")]
        assert len(found) == 1, self.output.read_text()
        return found[0]


@contextlib.contextmanager
def running(module: str, folder: Path, **variables: object) -> Iterator[ServiceProcess]:
    """Killed at the end if it still runs."""
    service = ServiceProcess(module, folder, **variables)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()
