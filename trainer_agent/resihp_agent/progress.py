"""How far the local ranks have come with one plan: many frames in, one acknowledgement per node and step out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from resihp_messages import ack, link

Mode = Literal["initial", "recovery", "planned"]


@dataclass
class PlanProgress:
    """One plan on this node. Each method returns the ack at the moment when the last awaited rank has reported.

    A rank that dies is dropped by `lose`: then the plan can never be complete here, no further ack is sent, and the
    abort that follows the death leads to a newer plan. Frames that name another epoch are ignored.
    """

    node: str
    epoch: int
    mode: Mode
    reconfiguration_id: str
    digest: str
    world: tuple[int, ...]
    """Local ranks of the plan's world: those that hold a stage and those that stand by. Both install and commit."""
    since_s: float
    """Monotonic time of the fault's notice; for planned and initial changes of the command's receipt."""
    plan_s: float
    lost: set[int] = field(default_factory=set)
    _held: set[int] = field(default_factory=set)
    _installed: dict[int, link.PlanInstalled] = field(default_factory=dict)
    _resumed: dict[int, link.IterationCommitted] = field(default_factory=dict)
    _refused: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether some local rank already runs this plan."""
        return bool(self._installed)

    @property
    def is_resumed(self) -> bool:
        """Whether every local rank has committed an iteration of this epoch."""
        return bool(self.world) and set(self.world) <= self._resumed.keys()

    def lose(self, rank: int) -> None:
        """The rank died."""
        if rank in self.world:
            self.lost.add(rank)

    def held(self, rank: int, frame: link.PlanHeld) -> ack.PlanPrepared | None:
        if not self._awaits(rank, frame.epoch) or rank in self._held:
            return None
        self._held.add(rank)
        if len(self._held) < len(self.world):
            return None
        return ack.PlanPrepared(
            node=self.node, reconfiguration_id=self.reconfiguration_id, digest=frame.digest, ranks=self.world
        )

    def refused(self, rank: int, frame: link.PlanRefused) -> ack.PlanRejected | None:
        """The first refusal speaks for the node."""
        if frame.epoch != self.epoch or self._refused:
            return None
        self._refused = True
        return ack.PlanRejected(
            node=self.node, reconfiguration_id=self.reconfiguration_id, reason=f"rank {rank}: {frame.reason}"[:4096]
        )

    def installed(self, rank: int, frame: link.PlanInstalled) -> ack.PlanApplied | None:
        if not self._awaits(rank, frame.epoch) or rank in self._installed:
            return None
        self._installed[rank] = frame
        if len(self._installed) < len(self.world):
            return None
        frames = [self._installed[r] for r in self.world]
        digests = {f.digest for f in frames}
        return ack.PlanApplied(
            node=self.node,
            reconfiguration_id=self.reconfiguration_id,
            digest=self.digest if digests == {self.digest} else digests.pop(),
            ranks=self.world,
            abort_s=tuple(f.abort_s for f in frames),
            rebuild_s=tuple(f.rebuild_s for f in frames),
            move_s=tuple(f.move_s for f in frames),
            bytes_received=tuple(f.bytes_received for f in frames),
            committed=max(f.committed for f in frames),
            digests_equal=all(f.digests_equal for f in frames) and digests == {self.digest},
            plan_s=self.plan_s,
            lost_iterations=max(f.lost_iterations for f in frames),
            state_source=next((f.state_source for f in frames if f.state_source != "live"), "live"),
        )

    def resumed(self, rank: int, frame: link.IterationCommitted, now_s: float) -> ack.IterationResumed | None:
        """Call with the frames that say `first_of_epoch`."""
        if not self._awaits(rank, frame.epoch) or rank in self._resumed:
            return None
        self._resumed[rank] = frame
        if len(self._resumed) < len(self.world):
            return None
        frames = [self._resumed[r] for r in self.world]
        return ack.IterationResumed(
            node=self.node,
            reconfiguration_id=self.reconfiguration_id,
            iteration=frame.iteration,
            ranks=self.world,
            redo_s=tuple(f.redo_s for f in frames),
            since_notice_s=max(0.0, now_s - self.since_s),
            samples_expected=frame.samples_expected,
            samples_once=min(f.samples_once for f in frames),
        )

    def _awaits(self, rank: int, epoch: int) -> bool:
        return epoch == self.epoch and rank in self.world and not self.lost
