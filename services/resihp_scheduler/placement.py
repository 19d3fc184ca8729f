"""Which node gets which rank. Pure.

A replica goes whole onto one node where it fits, and replicas onto different nodes, so that the loss of a node leaves
the others' copy of the state. Else a TP group stays on one node (its collectives are the most frequent ones); a group
is split only if no node has room for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resihp_plan import ParallelPlan


class _Slots:
    """Free slots, and who got which."""

    def __init__(self, free: Mapping[str, Sequence[int]]) -> None:
        self._free = {node: list(slots) for node, slots in free.items()}
        self.dealt: dict[int, tuple[str, int]] = {}

    @property
    def num_free(self) -> int:
        return sum(map(len, self._free.values()))

    def roomiest(self, needed: int) -> str | None:
        """The node with the most free slots (then by name), if it has at least `needed`."""
        fitting = [node for node, slots in self._free.items() if len(slots) >= needed]
        return min(fitting, key=lambda node: (-len(self._free[node]), node), default=None)

    def deal(self, node: str, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.dealt[rank] = (node, self._free[node].pop(0))

    def deal_together(self, ranks: Sequence[int]) -> bool:
        """All ranks onto one node; False if none has room."""
        node = self.roomiest(len(ranks))
        if node is not None:
            self.deal(node, ranks)
        return node is not None


def place(plan: ParallelPlan, free: Mapping[str, Sequence[int]]) -> dict[int, tuple[str, int]] | None:
    """Rank -> (node, slot), or None if the free slots do not suffice. `free`: node -> free slot numbers, ascending.

    Deterministic: the node with the most free slots first, then by name.
    """
    slots = _Slots(free)
    if slots.num_free < len(plan.world):
        return None
    for replica in plan.replicas:
        groups = [stage.ranks for stage in replica.stages]
        if slots.deal_together([rank for group in groups for rank in group]):
            continue
        for group in groups:
            if not slots.deal_together(group):
                for rank in group:
                    slots.deal_together((rank,))
    return slots.dealt
