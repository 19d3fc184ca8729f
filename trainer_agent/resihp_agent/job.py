"""One job on this node: its workers, the deaths it knows of, and the plans under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from resihp_agent.columns import ReportColumns
from resihp_agent.progress import PlanProgress
from resihp_agent.worker import Worker
from resihp_messages import Wire, link

log = structlog.get_logger(__name__)


@dataclass
class Death:
    """A rank of the job that is gone, here or on another node."""

    noticed_s: float
    planned_without: bool = False
    """Whether the scheduler has made a plan that knows of it. If a later plan uses the rank again, it has come back."""


@dataclass
class LocalJob:
    """Everything about one job that this agent must remember. Methods never wait."""

    name: str
    columns: ReportColumns
    workers: dict[int, Worker] = field(default_factory=dict)
    """Running workers by rank; one leaves the map when its exit was noticed."""
    starting: frozenset[int] = frozenset()
    """Ranks of the last `StartWorkers` that have not been acknowledged yet."""
    dead: dict[int, Death] = field(default_factory=dict)
    plans: dict[int, PlanProgress] = field(default_factory=dict)
    members: dict[int, frozenset[int]] = field(default_factory=dict)
    """The whole world of each plan in `plans`, on all nodes."""
    notice_s: float | None = None
    """Notice of the first fault that no resumed epoch has repaired yet."""
    suspicions: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    """By epoch: a broken link that waits for a death that explains it."""
    stopping: bool = False

    @property
    def newest_epoch(self) -> int:
        """Of the plans that were given to local workers."""
        return max(self.plans, default=0)

    @property
    def running_epoch(self) -> int:
        """Newest epoch that a local worker has installed."""
        return max((epoch for epoch, plan in self.plans.items() if plan.is_installed), default=0)

    def send(self, message: Wire, ranks: Iterable[int] | None = None) -> None:
        """To the workers of these ranks, or to all."""
        for rank in sorted(self.workers) if ranks is None else ranks:
            worker = self.workers.get(rank)
            if worker is not None and worker.link is not None:
                worker.link.send(message)

    def abort(self, dead: Iterable[int], *, noticed_s: float, reason: str) -> tuple[int, ...]:
        """These ranks are gone: tell the others at once. Returns the ranks that were not known to be dead."""
        new = tuple(sorted(rank for rank in dead if rank not in self.dead))
        if not new:
            return ()
        if self.notice_s is None:
            self.notice_s = noticed_s
        for rank in new:
            self.dead[rank] = Death(noticed_s)
            for plan in self.plans.values():
                plan.lose(rank)
        self.send(link.AbortEpoch(dead_ranks=new, epoch=self.running_epoch, noticed_s=noticed_s, reason=reason))
        return new

    def abort_epoch(self, epoch: int, *, noticed_s: float, reason: str) -> None:
        """Nobody died, but this epoch cannot go on."""
        if self.notice_s is None:
            self.notice_s = noticed_s
        self.send(link.AbortEpoch(dead_ranks=(), epoch=epoch, noticed_s=noticed_s, reason=reason))

    def explains(self, epoch: int) -> bool:
        """Whether a known death explains that communication of this epoch failed."""
        members = self.members.get(epoch)
        return any(members is None or rank in members for rank in self.dead)

    def take_plan(self, plan: PlanProgress, members: frozenset[int]) -> None:
        """A plan was given to the workers. Plans older than the running one are forgotten, suspicions of them too."""
        running = self.running_epoch
        for epoch in [e for e in self.plans if e < running]:
            del self.plans[epoch], self.members[epoch]
        for epoch in [e for e in self.suspicions if e < plan.epoch and plan.mode == "recovery"]:
            self.suspicions.pop(epoch).cancel()
        self.plans[plan.epoch], self.members[plan.epoch] = plan, members

    def note_deaths(self, world: frozenset[int], dead_ranks: Iterable[int]) -> tuple[int, ...]:
        """What a new plan tells about known deaths. Returns the dead ranks that the plan uses without knowing better.

        A rank that an earlier plan knew to be dead and this one uses again has been restarted: its death is forgotten.
        """
        listed = set(dead_ranks)
        unaware = []
        for rank, death in list(self.dead.items()):
            if rank not in world or rank in listed:
                death.planned_without = True
            elif death.planned_without:
                del self.dead[rank]
            else:
                unaware.append(rank)
        return tuple(unaware)
