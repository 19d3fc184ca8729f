"""Step times seen from outside: reads workers' progress pages in shared memory, so no service need be up."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import time
from pathlib import Path

from resihp_messages.page import PAGE_BYTES, PageState, ProgressPage

PERIOD_S = 0.001
PAGE_NAME = "/memfd:resihp-progress"


def pages_of(agent_pid: int) -> list[ProgressPage]:
    """The progress pages of an agent's workers, opened through its descriptors (read only)."""
    found = []
    for link in sorted(Path(f"/proc/{agent_pid}/fd").iterdir(), key=lambda p: int(p.name)):
        try:
            if not str(link.readlink()).startswith(PAGE_NAME):
                continue
            descriptor = os.open(link, os.O_RDONLY)
        except OSError:
            continue  # closed meanwhile
        try:
            found.append(ProgressPage(mmap.mmap(descriptor, PAGE_BYTES, prot=mmap.PROT_READ)))
        finally:
            os.close(descriptor)
    return found


class ProgressWatch:
    """When each iteration began on the first of the pages; run `follow` as a task beside the measurement."""

    def __init__(self, pages: list[ProgressPage]) -> None:
        if not pages:
            raise ValueError("the agent has no workers")
        self._page = pages[0]
        self._moved = asyncio.Event()
        self.began_at_s: dict[int, float] = {}
        """Iteration -> monotonic seconds at which it was first seen running."""

    @property
    def iteration(self) -> int:
        """The iteration that is being made."""
        return max(self.began_at_s, default=0)

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            seen = self._page.read()
            if seen.state is PageState.TRAINING and seen.iteration not in self.began_at_s:
                self.began_at_s[seen.iteration] = time.monotonic()
                self._moved.set()
                self._moved = asyncio.Event()
            await asyncio.sleep(PERIOD_S)

    async def reach(self, iteration: int) -> None:
        """Wait until this iteration runs."""
        while self.iteration < iteration:
            await self._moved.wait()

    def step_s(self, first: int, last: int) -> list[float]:
        """From the beginning of each iteration in first..last to the beginning of the next: pauses between included."""
        known = [self.began_at_s[i] for i in range(first, last + 2) if i in self.began_at_s]
        return [b - a for a, b in itertools.pairwise(known)]
