"""What a rank has achieved, apart from the epoch in which it works (docs/protocol.md, "State of a rank")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from resihp_messages import OptimizerConfig
from resihp_messages.ids import StateSource
from resihp_plan import ParallelPlan
from resihp_trainer import allocator
from resihp_trainer.dispute import Disputed
from resihp_trainer.gradients import Gradients
from resihp_trainer.join import Applied, Conclusion, Header, Synchronised
from resihp_trainer.optimizer import apply_step, clip_factor
from resihp_trainer.shards import ShardSet

_KNOWN_PLANS = 32


@dataclass(frozen=True)
class Kept:
    """Complete gradient sums of an iteration whose vote is not over here, in the layout of `epoch`."""

    epoch: int
    gradients: Gradients


@dataclass(frozen=True)
class Setback:
    """A return to an older state after which nothing was committed yet."""

    lost: int = 0
    """Committed iterations that were given up."""
    source: StateSource = "live"


@dataclass
class TrainingState:
    """Owned by the training thread. Every held layout has the state after iteration `committed`."""

    optimizer: OptimizerConfig
    committed: int = 0
    holdings: dict[int, ShardSet] = field(default_factory=dict)
    kept: Kept | None = None
    applied: Applied | None = None
    is_original: bool = False
    setback: Setback = Setback()
    disputed: Disputed | None = None
    """What replicas did not agree on, until that iteration is redone."""
    known: dict[int, ParallelPlan] = field(default_factory=dict)
    """Plans by epoch in whose layout some rank may hold state."""

    @property
    def voted_epoch(self) -> int:
        """The epoch in which the newest step was voted; -1 before the first."""
        return self.applied.epoch if self.applied else -1

    def learn(self, *plans: ParallelPlan) -> None:
        """Remember plans in whose layout some rank may hold state; the oldest are forgotten."""
        self.known.update({plan.epoch: plan for plan in plans})
        for epoch in sorted(self.known)[:-_KNOWN_PLANS]:
            if epoch not in self.holdings:
                del self.known[epoch]

    def header(self, plan: ParallelPlan) -> Header:
        """What this rank tells the members of the epoch of `plan`."""
        kept = Synchronised(self.kept.gradients.iteration, self.kept.epoch) if self.kept else None
        held = tuple((epoch, s.layout.plan.digest) for epoch, s in sorted(self.holdings.items()))
        return Header(plan.digest, self.committed, self.is_original, held, kept, self.applied)

    def settle(self, rank: int, conclusion: Conclusion) -> ShardSet | None:
        """Come to where all members are: apply the missed step, drop what is stale or not the base. Returns this rank's
        shards of the base layout, if it has them."""
        if rank in conclusion.settle:
            assert self.kept is not None  # it said so in its header
            assert conclusion.applied is not None
            self.commit(self.kept.epoch, conclusion.applied)
        elif rank in conclusion.stale:
            self.holdings.clear()
        self.committed, self.applied, self.kept = conclusion.committed, conclusion.applied, None
        base = self.holdings.get(conclusion.base.plan.epoch) if conclusion.base else None
        if base is not None:
            self.holdings = {base.layout.plan.epoch: base}
        return base

    def dispute(self, held: ShardSet | None) -> None:
        """All members are about to go back because replicas differ. Of a second order before the first one's iterations
        are redone, the first one's state is what tells."""
        if held is not None and (self.disputed is None or self.disputed.iteration <= self.committed):
            dtype = next((s.parameter.dtype for s in held.shards.values()), None)
            self.disputed = Disputed.of(held, self.committed, dtype) if dtype is not None else None

    def take_disputed(self) -> Disputed | None:
        """Once, when that iteration is committed again. One that was passed without being asked for is void."""
        if self.disputed is None or self.committed < self.disputed.iteration:
            return None
        found, self.disputed = self.disputed, None
        return found if found.iteration == self.committed else None

    def go_back(self, applied: Applied, setback: Setback, keep: int | None = None) -> None:
        """All members go on after `applied`, an earlier step or the same. `keep`: the epoch of the layout whose live
        shards are of that step; they stay until all hold the new layout. Others are given up."""
        self.holdings = {epoch: held for epoch, held in self.holdings.items() if epoch == keep}
        if self.committed != applied.iteration:
            self.holdings.clear()
        self.committed, self.applied, self.kept, self.setback = applied.iteration, applied, None, setback

    def commit(self, epoch: int, applied: Applied, halfway: Callable[[], None] | None = None) -> None:
        """Apply the step that was voted in `epoch` to the kept gradients; other layouts are outdated by it.

        Nothing in here waits, so a rank that begins a commit completes it or dies.
        """
        kept, held = self.kept, self.holdings[epoch]
        assert kept is not None
        assert (kept.epoch, kept.gradients.iteration) == (epoch, applied.iteration)
        factor = clip_factor(applied.norm, applied.tokens, self.optimizer.clip_norm)
        apply_step(held, kept.gradients.sums, factor, applied.iteration, self.optimizer, halfway)
        self.committed, self.applied, self.kept, self.setback = applied.iteration, applied, None, Setback()
        drops_layout = len(self.holdings) > 1
        self.holdings = {epoch: held}
        if drops_layout:
            allocator.give_back()
