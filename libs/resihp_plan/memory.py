"""A first memory model: what a rank needs at its peak within an iteration.

Parameters, gradients and both AdamW moments of its shards, plus the activations of the micro-batches in flight.
Activations per token and layer: `5 + 12 * share` times the hidden size, in elements (Korthikanti et al. 2022, 34 bytes
at two bytes each; attention scores are never kept, and what lies between TP regions is whole on every member).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resihp_plan.layout import Layout, unit_shares
from resihp_plan.model import ModelSpec, Split
from resihp_plan.plan import ParallelPlan


@dataclass(frozen=True)
class MemoryModel:
    """Bytes of a rank under a plan, and the limits that they must keep."""

    model: ModelSpec
    tokens_per_micro_batch: int
    limit_of: Mapping[int, int]
    """Rank -> usable bytes; ranks that are missing have no limit."""
    bytes_per_element: int = 4
    state_copies: int = 4
    """Parameter, gradient, two moments."""

    def rank_bytes(self, held: Layout, rank: int) -> int:
        """Peak bytes of an active rank under `held.plan`; 0 for others."""
        position = held.plan.position(rank)
        if position is None:
            return 0
        state = self.state_copies * held.num_elements(rank)
        return self.bytes_per_element * (state + self._activations(held.plan, *position))

    def _activations(self, plan: ParallelPlan, replica: int, stage: int, index: int) -> int:
        rep = plan.replicas[replica]
        st = rep.stages[stage]
        in_flight = min(plan.schedule.in_flight(len(rep.stages), stage), plan.num_units(replica, stage))
        units = unit_shares(st, self.model, Split.MLP)
        per_token = (5 + 12 * units[index] / sum(units)) * self.model.hidden * (st.layer_stop - st.layer_start)
        return int(per_token * self.tokens_per_micro_batch * in_flight)

    def excess(self, held: Layout) -> tuple[tuple[int, int, int], ...]:
        """(rank, needed, limit) in bytes of every rank that does not fit."""
        needed = ((rank, self.rank_bytes(held, rank)) for rank in held.ranks if rank in self.limit_of)
        return tuple((rank, need, self.limit_of[rank]) for rank, need in needed if need > self.limit_of[rank])
