"""The node's heartbeat: a sequence number, the node's addresses, and every worker as its agent sees it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

from resihp_agent.announcer import Announcer
from resihp_agent.identity import NodeIdentity
from resihp_agent.supervisor import Supervisor
from resihp_messages.report import NodeBeat, WorkerBeat


class Heart:
    """Beats every `period_s` from the agent's own process, so that no code of a trainer can hold a beat up."""

    def __init__(
        self,
        identity: NodeIdentity,
        supervisor: Supervisor,
        announcer: Announcer,
        *,
        period_s: float,
        clock: Callable[[], float],
        attached: Callable[[float], Iterator[WorkerBeat]] = lambda now_s: iter(()),
    ) -> None:
        self._identity = identity
        self._supervisor = supervisor
        self._announcer = announcer
        self._period_s = period_s
        self._clock = clock
        self._attached = attached
        self._sequence = itertools.count(1)

    def beat(self) -> NodeBeat:
        """The next beat."""
        now_s = self._clock()
        return NodeBeat(
            sequence=next(self._sequence),
            period_s=self._period_s,
            workers=(*(worker.beat(now_s) for worker in self._supervisor.workers()), *self._attached(now_s)),
            **self._identity.fields(),
        )

    async def run(self) -> None:
        """Beats until cancelled, on a fixed grid: a slow publish does not make the next beat late."""
        next_s = self._clock()
        while True:
            await self._announcer.beat(self.beat())
            next_s = max(next_s + self._period_s, self._clock())
            await asyncio.sleep(next_s - self._clock())
