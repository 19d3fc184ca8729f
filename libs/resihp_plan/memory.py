"""What a rank needs at its peak within an iteration, as `resihp_trainer` allocates it (checked against all tensors that
are alive: tests/unit/trainer/test_memory.py).

State: parameters, both AdamW moments, gradient sums. On top of it the larger of

* forward and backward: what is kept of every micro-batch in flight (`activations`), and the working set of one layer,
  or of the head;
* synchronisation: one more copy of the gradients, packed into buckets.

Not counted: the second layout that a rank holds during a change of plan (`change_bytes`), and snapshots, which lie in
host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from resihp_plan.activations import Activations, Share, held_units
from resihp_plan.cluster import Cluster
from resihp_plan.layout import Layout, unit_shares
from resihp_plan.model import EMBEDDING, HEAD, ModelSpec, Split
from resihp_plan.owners import cut, unit_elements
from resihp_plan.plan import ParallelPlan

_MOVED_COPIES = 3
"""Parameter and two moments."""


@dataclass(frozen=True)
class MemberRoom:
    """One member of a TP group with a memory limit, as the search for layer ranges sees it. All in bytes."""

    limit: int
    layer: float
    """One copy of its parameters of a layer."""
    end: float
    """One copy of its parameters of the embedding or of the head, the larger one; `ends` of both."""
    ends: float
    kept: float
    """Of one layer and micro-batch in flight."""
    late: float
    """The same, of a micro-batch that lacks only its weight gradients."""
    unit: float
    """Of one micro-batch in flight, whatever the layers; for the last stage, which needs the most."""
    working: float
    state_copies: int

    def layers(self, in_flight: int, late: int, num_ends: int) -> int:
        """How many layers fit. `late`: micro-batches beside those in flight that lack only their weight gradients;
        `num_ends`: of embedding and head, how many the stage holds. A plan that keeps to this has no
        `MemoryModel.excess`."""
        vocabulary = (0.0, self.end, self.ends)[num_ends]
        computing = self.limit - self.state_copies * vocabulary - (in_flight + late) * self.unit - self.working
        by_compute = computing / (self.state_copies * self.layer + in_flight * self.kept + late * self.late)
        synchronising = self.limit / (self.state_copies + 1) - vocabulary
        return max(0, int(min(by_compute, synchronising / self.layer)))


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

    @classmethod
    def of(
        cls, cluster: Cluster, model: ModelSpec, tokens_per_micro_batch: int, bytes_per_element: int
    ) -> MemoryModel | None:
        """With the limits of the cluster's devices; None if there are none."""
        limits = cluster.memory_of
        return cls(model, tokens_per_micro_batch, limits, bytes_per_element) if limits else None

    def rank_bytes(self, held: Layout, rank: int) -> int:
        """Peak bytes of an active rank under `held.plan`; 0 for others."""
        position = held.plan.position(rank)
        if position is None:
            return 0
        return self._peak(held.num_elements(rank), self.activation_bytes(held.plan, *position))

    def activation_bytes(self, plan: ParallelPlan, replica: int, stage: int, member: int) -> int:
        """Forward and backward of one member: what is kept for all micro-batches in flight, and the working set."""
        stages = plan.replicas[replica].stages
        st, is_last = stages[stage], stage == len(stages) - 1
        in_flight, late = self._held_units(plan, replica, stage)
        if not in_flight:
            return 0
        units = {s: unit_shares(st, self.model, s) for s in (Split.ATTENTION, Split.MLP, Split.VOCAB)}
        share = {s: u[member] / sum(u) for s, u in units.items()}
        of = self._activations
        num_layers, head = st.layer_stop - st.layer_start, of.head(share) if is_last else 0.0
        lasting = in_flight * (num_layers * of.layer(share) + of.stage) + late * (
            num_layers * of.products(share) + head
        )
        # In the backward the head comes first, and is gone when the layers' turn comes.
        in_layers, in_head = of.layer_working(share), of.head_working(share) if is_last else 0.0
        return int(lasting + max((in_flight - 1) * head + in_layers, in_flight * head + in_head))

    def _held_units(self, plan: ParallelPlan, replica: int, stage: int) -> tuple[int, int]:
        """`held_units` of a stage that executes only so many."""
        most, num_stages = plan.num_units(replica, stage), len(plan.replicas[replica].stages)
        in_flight, late = held_units(plan.schedule, num_stages, stage, self.model, mixed=replica in plan.mixed)
        return min(in_flight, most), min(late, max(0, most - in_flight) + self.model.recompute)

    def room(self, rank: int, parameters: float, share: Share) -> MemberRoom | None:
        """For a member that holds this share of a layer's parameters and of each split's units; None without limit."""
        if rank not in self.limit_of:
            return None
        of = self._activations
        one = {part: self.bytes_per_element * n for part, n in _elements(self.model).items()}
        vocab, norm = share[Split.VOCAB], self.bytes_per_element * self.model.hidden
        embedding, head = vocab * one[EMBEDDING], vocab * (one[HEAD] - norm) + norm
        if self.model.tied_embeddings:
            head += embedding
        return MemberRoom(
            limit=self.limit_of[rank],
            layer=parameters * one[0],
            end=max(embedding, head),
            ends=head if self.model.tied_embeddings else embedding + head,
            kept=of.layer(share),
            late=of.products(share),
            unit=of.stage + of.head(share),
            working=max(of.layer_working(share), of.head_working(share)),
            state_copies=self.state_copies,
        )

    @property
    def _activations(self) -> Activations:
        return Activations(self.model, self.tokens_per_micro_batch, self.bytes_per_element)

    def change_bytes(self, old: Layout, new: Layout, rank: int) -> int:
        """State of `rank` in both layouts: what it holds from the move until the first vote of the new plan, where the
        old layout is still the one to go back to. Packets in flight come on top for the time of the move."""
        return _MOVED_COPIES * self.bytes_per_element * (old.num_elements(rank) + new.num_elements(rank))

    def excess(self, plan: ParallelPlan) -> tuple[tuple[int, int, int], ...]:
        """(rank, needed, limit) in bytes of every rank that does not fit, ascending."""
        found = []
        for a, replica in enumerate(plan.replicas):
            last = len(replica.stages) - 1
            for s, st in enumerate(replica.stages):
                key = st.layer_stop - st.layer_start, st.weights, s == 0, s == last, self._held_units(plan, a, s)
                if key not in self._needs:
                    self._needs[key] = self._stage_bytes(plan, a, s)
                for rank, need in zip(st.ranks, self._needs[key], strict=True):
                    if need > self.limit_of.get(rank, need):
                        found.append((rank, need, self.limit_of[rank]))
        return tuple(sorted(found))

    @cached_property
    def _needs(self) -> dict[object, tuple[int, ...]]:
        """Of the members of stages that are alike."""
        return {}

    def _stage_bytes(self, plan: ParallelPlan, replica: int, stage: int) -> tuple[int, ...]:
        """`rank_bytes` of its members."""
        stages = plan.replicas[replica].stages
        st, is_last = stages[stage], stage == len(stages) - 1
        parts = [(0, st.layer_stop - st.layer_start)]
        parts += [(EMBEDDING, 1)] if stage == 0 or (is_last and self.model.tied_embeddings) else []
        parts += [(HEAD, 1)] if is_last else []
        found = []
        for t, member in enumerate(cut(st, self.model)):
            elements = sum(
                n * (stop - start) * size
                for part, n in parts
                for (start, stop), size in zip(member, unit_elements(self.model, part), strict=True)
            )
            found.append(self._peak(elements, self.activation_bytes(plan, replica, stage, t)))
        return tuple(found)

    def _peak(self, num_elements: int, activation_bytes: int) -> int:
        one_copy = self.bytes_per_element * num_elements
        return self.state_copies * one_copy + max(one_copy, activation_bytes)


@lru_cache(maxsize=64)
def _elements(model: ModelSpec) -> Mapping[int, int]:
    """Parameters of the embedding, of a layer (they are alike), and of final norm and head."""
    return {part: sum(prod(t.shape) for t in model.tensors if t.layer == part) for part in (EMBEDDING, 0, HEAD)}
