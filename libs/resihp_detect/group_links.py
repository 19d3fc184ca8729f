"""Slow links between ranks that a plan connects: TP groups compared with each other, pipeline edges with each other.

The shortest wait of a group's members is its transfer time (`LinkLevel`). One epoch: groups and the sizes of their
messages belong to a plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from resihp_detect.config import PeerConfig
from resihp_detect.link_level import LinkLevel
from resihp_detect.verdict import Verdict, VerdictKind
from resihp_plan import ParallelPlan, Place, chunk_tokens, edge_group_name, group_name, routes
from resihp_plan.groups import GroupKind

_KINDS = (VerdictKind.LINK_SLOW, VerdictKind.LINK_RECOVERED)
_MAX_PENDING = 64
_MANY_TOKENS = 1 << 20
"""So many tell the share of a chunk."""


class GroupLinks:
    """Detector of slow groups of one kind. Waits of an iteration are noted member by member, then judged together."""

    def __init__(
        self, kind: str, groups: Mapping[str, tuple[int, ...]], sizes: Mapping[str, float], config: PeerConfig
    ) -> None:
        """`sizes`: of each group, what it transfers per token, in any unit that all share."""
        self._kind, self._groups, self._sizes = kind, dict(groups), dict(sizes)
        self._level = LinkLevel({kind: tuple(groups)}, config)
        self._places = {
            name: (g, {r: m for m, r in enumerate(ranks)}) for g, (name, ranks) in enumerate(groups.items())
        }
        self._degree = max(len(ranks) for ranks in groups.values())
        self._pending: dict[int, dict[tuple[str, int], tuple[float, int, int]]] = {}

    @classmethod
    def of_tp_groups(cls, plan: ParallelPlan, mine: Collection[int], config: PeerConfig) -> GroupLinks | None:
        """A plan's TP groups whose members are all in `mine`; None if there are no two to compare."""
        groups, sizes = {}, {}
        for replica in plan.replicas:
            for stage in replica.stages:
                n = len(stage.ranks)
                if n > 1 and set(stage.ranks) <= set(mine):
                    name = group_name(GroupKind.TP, stage.ranks)
                    groups[name] = stage.ranks
                    # every layer reduces as many bytes per token as any other; a ring sends each of them so often
                    sizes[name] = (stage.layer_stop - stage.layer_start) * 2.0 * (n - 1) / n
        return cls("tp", groups, sizes, config) if len(groups) > 1 else None

    @classmethod
    def of_edges(cls, plan: ParallelPlan, mine: Collection[int], config: PeerConfig) -> GroupLinks | None:
        """A plan's pipeline edges, named as their forward groups, if all ranks are in `mine`; None if there are no two
        to compare, or if units migrate: then what a rank computes is not what its edges carry."""
        groups: dict[str, tuple[int, ...]] = {}
        sizes: dict[str, float] = {}
        if plan.migrations or not set(plan.active) <= set(mine):
            return None
        for a, replica in enumerate(plan.replicas):
            for s in range(len(replica.stages) - 1):
                for route in routes(plan, Place(a, s), Place(a, s + 1)):
                    start, stop = chunk_tokens(route.chunk, _MANY_TOKENS)
                    name = edge_group_name(route.source, route.destination, forward=True)
                    groups[name] = (route.source, route.destination)
                    sizes[name] = (stop - start) / _MANY_TOKENS
        return cls("pp", groups, sizes, config) if len(groups) > 1 else None

    @property
    def kind(self) -> str:
        return self._kind

    def note(self, iteration: int, rank: int, waits: Mapping[str, float], tokens: int, num_units: int = 1) -> None:
        """What one rank waited in its groups, by name, for so many micro-batches. Others' groups, and seconds that are
        not positive, are left out."""
        for name, wait_s in waits.items():
            if name in self._places and rank in self._places[name][1] and wait_s > 0:
                self._pending.setdefault(iteration, {})[name, rank] = (wait_s, tokens, num_units)

    def judge(self, iteration: int) -> tuple[Verdict, ...]:
        """All reports of the iteration are in that will come."""
        known = self._pending.pop(iteration, {})
        for old in [i for i in self._pending if i < iteration - _MAX_PENDING]:
            del self._pending[old]
        if not known:
            return ()
        waits = np.full((1, len(self._groups), self._degree), np.nan)
        size, count = np.zeros((2, 1, len(self._groups)))
        for (name, rank), (wait_s, tokens, num_units) in known.items():
            g, members = self._places[name]
            waits[0, g, members[rank]] = wait_s
            size[0, g], count[0, g] = tokens * self._sizes[name], num_units
        found = self._level.observe(iteration, waits, size, count)
        return tuple(self._named(v) for v in found if v.kind in _KINDS)  # what changes everywhere is nobody's link

    def _named(self, verdict: Verdict) -> Verdict:
        ranks = self._groups.get(verdict.device or "", ())
        evidence = {**verdict.evidence, "link": verdict.device, "ranks": list(ranks)}
        return replace(verdict, evidence=evidence)

    def snapshot(self) -> dict[str, Any]:
        """Plain values."""
        rows = [[i, *place, *seen] for i, known in self._pending.items() for place, seen in known.items()]
        return {"kind": self._kind, "level": self._level.snapshot(), "pending": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a snapshot of the same groups. Raises ValueError for others."""
        if state["kind"] != self._kind:
            raise ValueError(f"the snapshot is of links of kind {state['kind']!r}, not {self._kind!r}")
        self._level.restore(state["level"])
        self._pending = {}
        for iteration, name, rank, *seen in state["pending"]:
            wait_s, tokens, num_units = seen
            self._pending.setdefault(iteration, {})[name, rank] = (wait_s, tokens, num_units)
