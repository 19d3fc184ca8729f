"""What the detector knows about nodes: which start of which agent lives, what it holds, when it was heard. Pure.

It is a fold over the event and acknowledgement streams plus live beats, so that a restarted detector comes to the same
picture, and every change of it is idempotent. Times are the detector's monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from resihp_detect import BeatIntervals, LivenessConfig
from resihp_messages.report import NodeBeat


class Standing(StrEnum):
    """Of one start (incarnation) of an agent."""

    UP = "up"
    REPLACED = "replaced"
    """The node came back with a new incarnation: the workers of this one are gone, and that is still to be said."""
    LEFT = "left"
    LOST = "lost"


@dataclass
class AgentStart:
    """One start of a node's agent."""

    node: str
    incarnation: str
    intervals: BeatIntervals
    heard_s: float
    standing: Standing = Standing.UP
    sequence: int = 0
    """Of the newest beat; 0 if this detector has heard none."""
    holdings: dict[str, dict[int, int]] = field(default_factory=dict)
    """job -> rank -> pid (0 if unknown)."""

    def silence_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.heard_s)


class Fleet:
    """All nodes by name and incarnation."""

    def __init__(self, liveness: LivenessConfig) -> None:
        self._liveness = liveness
        self._starts: dict[tuple[str, str], AgentStart] = {}
        self._current: dict[str, str] = {}
        """node -> its newest incarnation."""
        self._floors: dict[str, float] = {}
        """job -> its timeouts.node_s."""

    # --- facts ----------------------------------------------------------------------------------------------------

    def joined(self, node: str, incarnation: str, now_s: float) -> None:
        """An agent is up. The one before it, if it neither left nor was given up, has been replaced."""
        if (node, incarnation) in self._starts:
            return
        before = self._starts.get((node, self._current.get(node, "")))
        if before is not None and before.standing is Standing.UP:
            before.standing = Standing.REPLACED
        self._starts[node, incarnation] = AgentStart(node, incarnation, BeatIntervals(self._liveness), now_s)
        self._current[node] = incarnation
        self._forget_old(node)

    def beat(self, incarnation: str, beat: NodeBeat, now_s: float) -> AgentStart:
        """A live beat. Of a start that is over it changes nothing; the result says which start it belongs to."""
        self.joined(beat.node, incarnation, now_s)
        start = self._starts[beat.node, incarnation]
        if start.standing is not Standing.UP or beat.sequence <= start.sequence:
            return start
        if start.sequence:
            # A lost beat is silence, too: the interval is the one between beats that arrived.
            start.intervals.observe(now_s - start.heard_s)
        start.heard_s, start.sequence = now_s, beat.sequence
        start.holdings = {}
        for worker in beat.workers:
            start.holdings.setdefault(worker.job, {})[worker.rank] = worker.pid
        return start

    def left(self, node: str, incarnation: str) -> None:
        self._end(node, incarnation, Standing.LEFT)

    def lost(self, node: str, incarnation: str) -> None:
        """The verdict about this start has been published."""
        self._end(node, incarnation, Standing.LOST)

    def started(self, node: str, incarnation: str, job: str, pids: Mapping[int, int]) -> None:
        """Workers said hello."""
        start = self._starts.get((node, incarnation))
        if start is not None:
            start.holdings.setdefault(job, {}).update(pids)

    def ended(self, node: str, job: str, rank: int) -> None:
        """A worker of the node has exited or finished."""
        start = self.current(node)
        if start is not None and job in start.holdings:
            start.holdings[job].pop(rank, None)

    def job_submitted(self, job: str, node_s: float) -> None:
        self._floors[job] = node_s

    def job_over(self, job: str) -> None:
        self._floors.pop(job, None)
        for start in self._starts.values():
            start.holdings.pop(job, None)

    def forgive(self, now_s: float) -> None:
        """The detector could not hear: everybody's silence begins anew."""
        for start in self._starts.values():
            start.heard_s = max(start.heard_s, now_s)

    # --- judgement ------------------------------------------------------------------------------------------------

    def current(self, node: str) -> AgentStart | None:
        """The newest start of the node's agent."""
        return self._starts.get((node, self._current.get(node, "")))

    def floor_s(self, start: AgentStart) -> float:
        """The most patient job on the node decides for the node."""
        floors = [self._floors[job] for job, ranks in start.holdings.items() if ranks and job in self._floors]
        return max(floors, default=self._liveness.floor_s)

    def bound_s(self, start: AgentStart) -> float:
        return start.intervals.bound_s(self.floor_s(start))

    def silent(self, now_s: float) -> tuple[AgentStart, ...]:
        """Starts that have been silent for longer than their bound."""
        return tuple(s for s in self.up() if s.silence_s(now_s) > self.bound_s(s))

    def replaced(self) -> tuple[AgentStart, ...]:
        """Starts whose loss is certain and not yet said."""
        return tuple(s for s in self._starts.values() if s.standing is Standing.REPLACED)

    def up(self) -> Iterator[AgentStart]:
        return (s for s in self._starts.values() if s.standing is Standing.UP)

    def _end(self, node: str, incarnation: str, standing: Standing) -> None:
        start = self._starts.get((node, incarnation))
        if start is not None and start.standing in (Standing.UP, Standing.REPLACED):
            start.standing = standing

    def _forget_old(self, node: str, keep: int = 16) -> None:
        """Old starts are kept for a while, so that their late beats are recognised."""
        old = [
            key for key, s in self._starts.items() if key[0] == node and s.standing in (Standing.LEFT, Standing.LOST)
        ]
        for key in old[:-keep]:
            del self._starts[key]


def ranks_of(start: AgentStart) -> Iterable[tuple[str, tuple[int, ...]]]:
    """(job, ranks) that the start holds, sorted; jobs without ranks left out."""
    return tuple((job, tuple(sorted(ranks))) for job, ranks in sorted(start.holdings.items()) if ranks)
