"""The search's working state: pipelines with their worths, and what a change of a few of them would give."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

from resihp_plan.planner.shape import Level, Pipeline, Worth
from resihp_plan.planner.space import Space

IMPROVEMENT = 1e-6
"""Relative; what is less is noise of the estimate."""


class Board:
    """Replicas under change. An empty pipeline is a replica that is gone."""

    def __init__(self, space: Space, pipelines: Sequence[Pipeline]) -> None:
        self.space = space
        self.pipelines = list(pipelines)
        self.worths: list[Worth | None] = [space.worth(p) if p else None for p in pipelines]
        self._level: Level | None = None
        self.seconds = self.trial({})

    def trial(self, changes: Mapping[int, Pipeline]) -> float:
        """Estimated seconds with some pipelines replaced; infinite if one does not fit."""
        new: dict[int, Worth | None] = {}
        for a, pipeline in changes.items():
            new[a] = self.space.worth(pipeline) if pipeline else None
            if pipeline and new[a] is None:
                return float("inf")
        if self._level is not None:
            gone = [w for a in changes if (w := self.worths[a]) is not None]
            changed = self._level.changed(gone, [w for w in new.values() if w is not None])
            if changed is not None:
                return self.space.at_level_s(changed)
        worths: list[Worth] = []
        for a, worth in enumerate(self.worths):
            known = new.get(a, worth)
            if known is not None:
                worths.append(known)
            elif a not in new and self.pipelines[a]:
                return float("inf")
        if not changes and self.space.is_continuous(len(worths)):
            self._level = Level.of(worths)
        return self.space.level_s(worths) if worths else float("inf")

    def take(self, changes: Mapping[int, Pipeline], seconds: float) -> None:
        for a, pipeline in changes.items():
            self.pipelines[a] = pipeline
            self.worths[a] = self.space.worth(pipeline) if pipeline else None
        self.seconds = seconds
        if self._level is not None:
            self._level = Level.of([w for w in self.worths if w is not None])

    @property
    def result(self) -> tuple[Pipeline, ...]:
        return tuple(p for p in self.pipelines if p)

    def swap_at_random(self, rng: random.Random, trials: int) -> None:
        """Exchange two groups, or move one to another replica, wherever that helps; groups of the commonest kind are
        only partners: among themselves nothing changes."""
        places = [(a, s) for a, p in enumerate(self.pipelines) for s in range(len(p))]
        kinds = Counter(g.kind for p in self.pipelines for g in p)
        if len(self.pipelines) < 2 or not kinds:
            return
        common = max(kinds, key=lambda k: (kinds[k], -k))
        special = [(a, s) for a, s in places if self.pipelines[a][s].kind != common] or places
        for _ in range(trials):
            a, s = rng.choice(special)
            b = rng.randrange(len(self.pipelines) - 1)
            b += b >= a
            changes = self._exchange(rng, a, s, b)
            if changes is None:
                continue
            seconds = self.trial(changes)
            if seconds < self.seconds * (1 - IMPROVEMENT):
                self.take(changes, seconds)
                places = [(x, t) for x, p in enumerate(self.pipelines) for t in range(len(p))]
                special = [(a, s) for a, s in places if self.pipelines[a][s].kind != common] or places

    def _exchange(self, rng: random.Random, a: int, s: int, b: int) -> Mapping[int, Pipeline] | None:
        one, other = self.pipelines[a], self.pipelines[b]
        group = one[s]
        if not other or rng.random() < 0.25:  # move
            t = rng.randrange(len(other) + 1)
            return {a: one[:s] + one[s + 1 :], b: (*other[:t], group, *other[t:])}
        # The same stage is preferred: state that is already there need not move.
        t = s if s < len(other) and rng.random() < 0.5 else rng.randrange(len(other))
        partner = other[t]
        if partner.kind == group.kind:
            return None
        return {a: (*one[:s], partner, *one[s + 1 :]), b: (*other[:t], group, *other[t + 1 :])}
