"""Follows one job through the API: record, devices, iterations and events, kept up to date until the job is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from resihp_cli.client import GatewayClient, is_temporary
from resihp_cli.errors import CliError
from resihp_cli.worker_probe import WorkerProbe
from resihp_gateway.models import DeviceView, EventView, IterationView, JobView

OVER = frozenset({"finished", "failed", "stopped"})
POLL_S = 0.25


@dataclass
class JobWatch:
    """The newest known state of a job. `run` keeps it; views only read it."""

    client: GatewayClient
    job_name: str
    probe: WorkerProbe
    after_sequence: int = 0
    """Events up to this one are old."""
    job: JobView | None = None
    devices: list[DeviceView] = field(default_factory=list)
    iterations: list[IterationView] = field(default_factory=list)
    events: list[EventView] = field(default_factory=list)
    stale: str = ""
    """Why the picture may be old (gateway unreachable), empty while it is fresh. Training may go on all the same."""

    @property
    def committed(self) -> int:
        last = self.iterations[-1].iteration if self.iterations else 0
        return max(last, self.job.committed if self.job else 0)

    @property
    def over(self) -> bool:
        return self.job is not None and self.job.state in OVER

    async def run(
        self,
        *,
        on_event: Callable[[EventView], None] = lambda _: None,
        on_iterations: Callable[[list[IterationView]], None] = lambda _: None,
        on_poll: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Until the job is over."""
        follower = asyncio.create_task(self._follow(on_event), name="events")
        try:
            while True:
                if follower.done():
                    follower.result()
                await self.refresh(on_iterations)
                if on_poll is not None:
                    await on_poll()
                if self.over:
                    return
                await asyncio.wait({follower}, timeout=POLL_S)
        finally:
            follower.cancel()
            with contextlib.suppress(asyncio.CancelledError, CliError):
                await follower

    async def refresh(self, on_iterations: Callable[[list[IterationView]], None] = lambda _: None) -> None:
        """One look at everything. A gateway that is away for a moment only makes the picture stale."""
        try:
            after = self.iterations[-1].iteration if self.iterations else 0
            self.job, self.devices, new = await asyncio.gather(
                self.client.job(self.job_name),
                self.client.devices(self.job_name),
                self.client.iterations(self.job_name, after=after),
            )
        except CliError as error:
            if not is_temporary(error):
                raise
            self.stale = str(error)
            return
        self.stale = ""
        if new:
            self.iterations += new
            on_iterations(new)
        self.probe.observe(
            {d.rank: d.live_pid or d.pid for d in self.devices if d.state != "lost"}, iteration=self.committed
        )

    async def _follow(self, on_event: Callable[[EventView], None]) -> None:
        async for event in self.client.events(after=self.after_sequence):
            if event.job in (self.job_name, "_fleet"):
                self.events.append(event)
                on_event(event)
