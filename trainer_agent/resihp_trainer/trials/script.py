"""What happens in one random sequence: a pure function of (seed, index).

The script fixes who is lost, when and how, who comes back, and what kind of change is made when. The plans themselves
are drawn while the job runs, from the ranks that live then; a run replays its draws as far as deaths are noticed in the
same order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from resihp_messages import ScriptedFault
from resihp_messages.job import ITERATION_POINTS
from resihp_plan.random_plan import Variation

MIN_RANKS, MAX_RANKS = 4, 9
MIN_LEFT = 2
"""Ranks that live at any time: two can hold two replicas, so that the next death loses no state."""
NUM_EVENTS = (4, 6)
GAPS = (2, 3)
"""Iterations between two events."""
COPIED_AFTER = 6
"""Further iterations before a loss that takes the last holder of a slice: the layout's first snapshot is done then."""
TAIL = 4
"""Iterations after the last gap: a change is delivered when an iteration is committed, and comes into use later."""
RETURN_TAKES = 4
"""Further iterations after the start of a replacement: a process begins, and says hello, before its plan is made."""


class Strike(StrEnum):
    """When the second of two deaths strikes, relative to the first."""

    AT_ONCE = "at once"
    """By its own script, in the same iteration."""
    LEAVING = "while the others leave"
    REBUILDING = "while groups are rebuilt"
    MOVING = "while state moves"
    REDOING = "while the iteration is redone"


@dataclass(frozen=True)
class Loss:
    """One or two ranks die in an iteration; a frozen one is killed by its (played) agent."""

    iteration: int
    faults: tuple[ScriptedFault, ...]
    """Executed by the victims themselves."""
    second: int | None = None
    """A further rank, killed from outside when `strike` says."""
    strike: Strike = Strike.AT_ONCE
    takes_state: bool = False
    """The victim is the only holder of some slice, so that all ranks go back to a snapshot."""

    @property
    def victims(self) -> tuple[int, ...]:
        own = tuple(f.rank for f in self.faults)
        return own if self.second is None else (*own, self.second)

    def __str__(self) -> str:
        words = [f"{f.kind} {f.rank}@{f.iteration}:{f.point}" for f in self.faults]
        if self.second is not None:
            words.append(f"kill {self.second} {self.strike}")
        return " + ".join(words) + (" (the only holder)" if self.takes_state else "")


@dataclass(frozen=True)
class Change:
    """A planned change."""

    iteration: int
    what: Variation

    def __str__(self) -> str:
        return f"{self.what}@{self.iteration}"


@dataclass(frozen=True)
class Rejoin:
    """Lost ranks are started again and taken in by a planned change."""

    iteration: int
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"rejoin {','.join(map(str, self.ranks))}@{self.iteration}"


Event = Loss | Change | Rejoin


@dataclass(frozen=True)
class Script:
    """One sequence. `events` are in the order of their iterations."""

    seed: int
    index: int
    num_ranks: int
    iterations: int
    events: tuple[Event, ...]

    @property
    def faults(self) -> tuple[ScriptedFault, ...]:
        return tuple(f for e in self.events if isinstance(e, Loss) for f in e.faults)

    def draws(self) -> Random:
        """A fresh generator for the plans of a run."""
        return Random(f"plans {self.seed}/{self.index}")

    def __str__(self) -> str:
        return f"{self.num_ranks} workers, {self.iterations} iterations: {'; '.join(map(str, self.events))}"


def random_script(seed: int, index: int) -> Script:
    """Sequence `index` of `seed`.

    >>> str(random_script(7, 0)) == str(random_script(7, 0)) != str(random_script(7, 1))
    True
    """
    rng = Random(f"script {seed}/{index}")
    world = _World(rng, rng.randint(MIN_RANKS, MAX_RANKS))
    events: list[Event] = []
    iteration = 2
    for _ in range(rng.randint(*NUM_EVENTS)):
        events.append(world.next_event(iteration))
        iteration = events[-1].iteration + rng.randint(*GAPS)
        iteration += RETURN_TAKES if isinstance(events[-1], Rejoin) else 0
    return Script(seed, index, world.num_ranks, iteration + TAIL, tuple(events))


@dataclass
class _World:
    """Who lives while a script is written."""

    rng: Random
    num_ranks: int
    starts: dict[int, int] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.alive = set(range(self.num_ranks))

    def next_event(self, iteration: int) -> Event:
        lost = sorted(set(range(self.num_ranks)) - self.alive)
        room = len(self.alive) - MIN_LEFT
        draw = self.rng.random()
        if lost and draw < 0.25:
            return self._rejoin(iteration, lost)
        if room > 0 and draw < 0.7:
            return self._loss(iteration, min(room, self.rng.choice((1, 1, 2))))
        return Change(iteration, self.rng.choice(tuple(Variation)))

    def _rejoin(self, iteration: int, lost: list[int]) -> Rejoin:
        back = sorted(self.rng.sample(lost, self.rng.randint(1, len(lost))))
        for rank in back:
            self.starts[rank] = self.starts.get(rank, 0) + 1
        self.alive.update(back)
        return Rejoin(iteration, tuple(back))

    def _loss(self, iteration: int, count: int) -> Loss:
        victims = self.rng.sample(sorted(self.alive), count)
        self.alive.difference_update(victims)
        if count == 1 and self.rng.random() < 0.25:
            at = iteration + COPIED_AFTER
            return Loss(at, self._faults(victims, at), takes_state=True)
        strike = self.rng.choice(tuple(Strike)) if count > 1 else Strike.AT_ONCE
        if strike is Strike.AT_ONCE:
            return Loss(iteration, self._faults(victims, iteration))
        return Loss(iteration, self._faults(victims[:1], iteration), victims[1], strike)

    def _faults(self, victims: Collection[int], iteration: int) -> tuple[ScriptedFault, ...]:
        return tuple(
            ScriptedFault(
                kind="freeze" if self.rng.random() < 0.25 else "kill",
                rank=rank,
                iteration=iteration,
                point=self.rng.choice(ITERATION_POINTS),
                start=self.starts.get(rank, 0),
            )
            for rank in victims
        )
