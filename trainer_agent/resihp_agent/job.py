"""One job on this node: its workers, the deaths it knows of, and the plans under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
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

    start: int
    """Which start of the rank it was: a later one lives, or may live."""
    noticed_s: float


@dataclass
class LocalJob:
    """Everything about one job that this agent must remember. Methods never wait."""

    name: str
    columns: ReportColumns
    workers: dict[int, Worker] = field(default_factory=dict)
    """Running workers by rank; one leaves the map when its exit was noticed."""
    starting: frozenset[int] = frozenset()
    """Ranks of `StartWorkers` commands that have not been acknowledged yet."""
    dead: dict[int, Death] = field(default_factory=dict)
    """By rank, the death of its newest start that is gone."""
    starts: dict[int, int] = field(default_factory=dict)
    """Rank -> its newest start that a command named; other ranks are at their first (0)."""
    plans: dict[int, PlanProgress] = field(default_factory=dict)
    members: dict[int, Mapping[int, int]] = field(default_factory=dict)
    """The whole world of each plan in `plans`, on all nodes: rank -> start."""
    notice_s: float | None = None
    """Notice of the first fault that no resumed epoch has repaired yet."""
    suspicions: dict[int, asyncio.TimerHandle] = field(default_factory=dict)
    """By epoch: a broken link that waits for a death that explains it."""
    failed_checkpoints: set[int] = field(default_factory=set)
    """Iterations whose checkpoint a worker here could not write, as was said."""
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

    def start_of(self, rank: int) -> int:
        """The newest start of the rank that is known here."""
        return self.starts.get(rank, 0)

    def learn_starts(self, starts: Mapping[int, int]) -> None:
        """A command names these starts."""
        self.starts.update({rank: max(start, self.start_of(rank)) for rank, start in starts.items()})

    def abort(self, dead: Mapping[int, int], *, noticed_s: float, reason: str) -> tuple[int, ...]:
        """These ranks (-> which start of them) are gone: tell the others at once. Returns those whose death is news."""
        new = {rank: dead[rank] for rank in sorted(dead) if not self._is_known(rank, dead[rank])}
        if not new:
            return ()
        if self.notice_s is None and any(self._is_awaited(rank, start) for rank, start in new.items()):
            self.notice_s = noticed_s
        for rank, start in new.items():
            self.dead[rank] = Death(start, noticed_s)
            for epoch, plan in self.plans.items():
                if self.members[epoch].get(rank) == start:
                    plan.lose(rank)
        message = link.AbortEpoch(
            dead_ranks=tuple(new),
            starts=tuple(new.values()),
            epoch=self.running_epoch,
            noticed_s=noticed_s,
            reason=reason,
        )
        self.send(message)
        return tuple(new)

    def _is_known(self, rank: int, start: int) -> bool:
        return rank in self.dead and self.dead[rank].start >= start

    def _is_awaited(self, rank: int, start: int) -> bool:
        """Whether the death stops anybody: a process that is in no plan yet leaves no gap."""
        return not self.members or any(world.get(rank) == start for world in self.members.values())

    def abort_epoch(self, epoch: int, *, noticed_s: float, reason: str) -> None:
        """Nobody died, but this epoch cannot go on."""
        if self.notice_s is None:
            self.notice_s = noticed_s
        self.send(link.AbortEpoch(dead_ranks=(), epoch=epoch, noticed_s=noticed_s, reason=reason))

    def explains(self, epoch: int) -> bool:
        """Whether a known death explains that communication of this epoch failed."""
        members = self.members.get(epoch)
        return any(
            members is None or (rank in members and death.start >= members[rank]) for rank, death in self.dead.items()
        )

    def take_plan(self, plan: PlanProgress, members: Mapping[int, int]) -> None:
        """A plan was given to the workers. Plans older than the running one are forgotten, suspicions of them too."""
        running = self.running_epoch
        for epoch in [e for e in self.plans if e < running]:
            del self.plans[epoch], self.members[epoch]
        for epoch in [e for e in self.suspicions if e < plan.epoch and plan.mode == "recovery"]:
            self.suspicions.pop(epoch).cancel()
        self.plans[plan.epoch], self.members[plan.epoch] = plan, members

    def outdated_ranks(self, members: Mapping[int, int]) -> tuple[int, ...]:
        """Ranks of a new plan (-> start) of whose death whoever made the plan did not know yet."""
        return tuple(rank for rank, start in sorted(members.items()) if self._is_known(rank, start))
