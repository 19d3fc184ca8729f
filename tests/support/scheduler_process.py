"""Real scheduler processes, to be killed, stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from resihp_store import LeaseRecord, Store, queries
from support.waiting import wait_for


class SchedulerProcess:
    """`python -m resihp_scheduler` with its log in `folder`; each start is a new incarnation."""

    def __init__(self, folder: Path, *, bus_url: str, database_url: str, name: str, lease_ttl_s: float = 1.0) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._starts = 0
        self._environment = {
            **os.environ,
            "RESIHP_BUS_URL": bus_url,
            "RESIHP_DATABASE_URL": database_url,
            "RESIHP_SCHEDULER_LEASE_TTL_S": str(lease_ttl_s),
            "RESIHP_SCHEDULER_LEASE_RENEW_S": str(min(lease_ttl_s / 5, 0.5)),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def incarnation(self) -> str:
        return f"{self.name}-{self._starts}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        self._starts += 1
        environment = {**self._environment, "RESIHP_SCHEDULER_INCARNATION": self.incarnation}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "resihp_scheduler"], env=environment, stdout=log, stderr=log
            )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        """Whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


async def leads(store: Store, *incarnations: str, timeout_s: float = 30.0) -> LeaseRecord:
    """Wait until one of these holds the lease."""

    async def held() -> LeaseRecord | None:
        async with store.read() as connection:
            lease = await queries.lease(connection)
        return lease if lease is not None and lease.holder in incarnations and lease.remaining_s > 0 else None

    found = await wait_for(held, timeout_s, what=f"one of {incarnations} leads")
    assert found is not None
    return found
