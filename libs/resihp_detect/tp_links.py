"""Slow links inside tensor-parallel groups: the shortest wait in each group, compared with the other groups of the job.

One epoch: groups and the sizes of their messages belong to a plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from resihp_detect.config import PeerConfig
from resihp_detect.link_level import LinkLevel
from resihp_detect.verdict import Verdict, VerdictKind
from resihp_detect.work import Share
from resihp_plan import ParallelPlan, group_name
from resihp_plan.groups import GroupKind

KIND = "tp"
_KINDS = (VerdictKind.LINK_SLOW, VerdictKind.LINK_RECOVERED)
_MAX_PENDING = 64


class TpLinks:
    """Detector of slow TP groups. Waits of an iteration are noted rank by rank, then judged together."""

    def __init__(self, groups: Mapping[str, tuple[int, ...]], layers: Mapping[str, int], config: PeerConfig) -> None:
        """`layers`: of each group's stage; every layer reduces as many bytes per token as any other."""
        self._groups, self._layers = dict(groups), dict(layers)
        self._level = LinkLevel({KIND: tuple(groups)}, config)
        self._places = {rank: (g, m) for g, ranks in enumerate(groups.values()) for m, rank in enumerate(ranks)}
        self._degree = max(len(ranks) for ranks in groups.values())
        self._pending: dict[int, dict[int, tuple[float, int]]] = {}

    @classmethod
    def of(
        cls, plan: ParallelPlan, shares: Mapping[int, Share], mine: Collection[int], config: PeerConfig
    ) -> TpLinks | None:
        """Of a plan's groups whose members are all in `mine`; None if there are no two to compare."""
        stages = [
            stage
            for replica in plan.replicas
            for stage in replica.stages
            if len(stage.ranks) > 1 and set(stage.ranks) <= set(mine)
        ]
        if len(stages) < 2:
            return None
        names = [group_name(GroupKind.TP, stage.ranks) for stage in stages]
        layers = [stage.layer_stop - stage.layer_start for stage in stages]
        ranks = [stage.ranks for stage in stages]
        return cls(dict(zip(names, ranks, strict=True)), dict(zip(names, layers, strict=True)), config)

    def note(self, iteration: int, rank: int, wait_s: float, tokens: int) -> None:
        """What one rank waited in its group. Seconds that are not positive count as unknown."""
        if rank in self._places and wait_s > 0:
            self._pending.setdefault(iteration, {})[rank] = (wait_s, tokens)

    def judge(self, iteration: int) -> tuple[Verdict, ...]:
        """All reports of the iteration are in that will come."""
        known = self._pending.pop(iteration, {})
        for old in [i for i in self._pending if i < iteration - _MAX_PENDING]:
            del self._pending[old]
        if not known:
            return ()
        waits = np.full((1, len(self._groups), self._degree), np.nan)
        size = np.zeros((1, len(self._groups)))
        layers, degrees = list(self._layers.values()), [len(ranks) for ranks in self._groups.values()]
        ring = [2.0 * (n - 1) / n for n in degrees]  # bytes over each link per byte reduced
        for rank, (wait_s, tokens) in known.items():
            g, m = self._places[rank]
            waits[0, g, m] = wait_s
            size[0, g] = tokens * layers[g] * ring[g]
        found = self._level.observe(iteration, waits, size)
        return tuple(self._named(v) for v in found if v.kind in _KINDS)  # what changes everywhere is nobody's link

    def _named(self, verdict: Verdict) -> Verdict:
        ranks = self._groups.get(verdict.device or "", ())
        evidence = {**verdict.evidence, "link": verdict.device, "ranks": list(ranks)}
        return replace(verdict, evidence=evidence)

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        rows = [[i, rank, *seen] for i, known in self._pending.items() for rank, seen in known.items()]
        return {"level": self._level.snapshot(), "pending": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot of the same groups. Raises ValueError for others."""
        self._level.restore(state["level"])
        self._pending = {}
        for iteration, rank, wait_s, tokens in state["pending"]:
            self._pending.setdefault(iteration, {})[rank] = (wait_s, tokens)
