"""What a rank needs at its peak within an iteration, as `resihp_trainer` allocates it (checked against measurements:
tests/unit/trainer/test_memory.py, tests/integration/trainer/test_memory.py).

State: parameters, both AdamW moments, gradient sums. On top of it the larger of

* forward and backward: what is kept of every micro-batch in flight, and the working set of one layer, or of the head;
* synchronisation: one more copy of the gradients, packed into buckets.

Kept per token and layer, in elements of the residual stream's size: 6 hidden (two norms, two sums), 3 query and 2
key/value widths, 4 MLP widths, the latter two by the rank's share. Attention scores are never kept. Not counted: the
second layout that a rank holds during a change of plan (`change_bytes`), and snapshots, which lie in host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from resihp_plan.layout import Layout, unit_shares
from resihp_plan.model import EMBEDDING, HEAD, ModelSpec, Split
from resihp_plan.plan import ParallelPlan

_ROUNDED_BYTES = 2
"""Of an element in bfloat16."""
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
    unit: float
    """Of one micro-batch in flight, whatever the layers; for the last stage, which needs the most."""
    working: float
    state_copies: int

    def layers(self, in_flight: int, num_ends: int) -> int:
        """How many layers fit; `num_ends`: of embedding and head, how many the stage holds. A plan that keeps to this
        has no `MemoryModel.excess`."""
        vocabulary = (0.0, self.end, self.ends)[num_ends]
        computing = self.limit - self.state_copies * vocabulary - in_flight * self.unit - self.working
        by_compute = computing / (self.state_copies * self.layer + in_flight * self.kept)
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

    def rank_bytes(self, held: Layout, rank: int) -> int:
        """Peak bytes of an active rank under `held.plan`; 0 for others."""
        position = held.plan.position(rank)
        if position is None:
            return 0
        one_copy = self.bytes_per_element * held.num_elements(rank)
        return self.state_copies * one_copy + max(one_copy, self.activation_bytes(held.plan, *position))

    def activation_bytes(self, plan: ParallelPlan, replica: int, stage: int, member: int) -> int:
        """Forward and backward of one member: what is kept for all micro-batches in flight, and the working set."""
        stages = plan.replicas[replica].stages
        st, is_last = stages[stage], stage == len(stages) - 1
        in_flight = min(plan.schedule.in_flight(len(stages), stage), plan.num_units(replica, stage))
        if not in_flight:
            return 0
        units = {s: unit_shares(st, self.model, s) for s in (Split.ATTENTION, Split.MLP, Split.VOCAB)}
        share = {s: u[member] / sum(u) for s, u in units.items()}
        kept = (st.layer_stop - st.layer_start) * self.layer_bytes(share[Split.ATTENTION], share[Split.MLP])
        kept += self._per_token(self.model.hidden)  # the stage's input
        if is_last:
            kept += self._head_bytes(share[Split.VOCAB])
        return int(in_flight * kept + self.working_bytes(share, is_last=is_last))

    def layer_bytes(self, attention: float, mlp: float) -> float:
        """Kept of one layer and micro-batch by a member with these shares of the head groups and MLP units."""
        return self._per_token(self.model.hidden) if self.model.recompute else self._computed_bytes(attention, mlp)

    def working_bytes(self, share: Mapping[Split, float], *, is_last: bool) -> float:
        """Live for a moment: the products of one MLP in its backward, or logits and their exponentials; with
        recomputation also all that one layer would keep otherwise."""
        m = self.model
        layer = self._per_token(share[Split.MLP] * m.ffn_hidden, rounded=True) + self._per_token(m.hidden)
        if m.recompute:
            layer += self._computed_bytes(share[Split.ATTENTION], share[Split.MLP])
        head = self._per_token(2 * share[Split.VOCAB] * m.vocab_size) if is_last else 0.0
        return max(layer, head)

    def room(self, rank: int, parameters: float, share: Mapping[Split, float]) -> MemberRoom | None:
        """For a member that holds this share of a layer's parameters and of each split's units; None without limit."""
        if rank not in self.limit_of:
            return None
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
            kept=self.layer_bytes(share[Split.ATTENTION], share[Split.MLP]),
            unit=self._per_token(self.model.hidden) + self._head_bytes(vocab),
            working=self.working_bytes(share, is_last=True),
            state_copies=self.state_copies,
        )

    def change_bytes(self, old: Layout, new: Layout, rank: int) -> int:
        """State of `rank` in both layouts: what it holds from the move until the first vote of the new plan, where the
        old layout is still the one to go back to. Packets in flight come on top for the time of the move."""
        return _MOVED_COPIES * self.bytes_per_element * (old.num_elements(rank) + new.num_elements(rank))

    def excess(self, held: Layout) -> tuple[tuple[int, int, int], ...]:
        """(rank, needed, limit) in bytes of every rank that does not fit."""
        needed = ((rank, self.rank_bytes(held, rank)) for rank in held.ranks if rank in self.limit_of)
        return tuple((rank, need, self.limit_of[rank]) for rank, need in needed if need > self.limit_of[rank])

    def _computed_bytes(self, attention: float, mlp: float) -> float:
        m = self.model
        key_value = m.num_kv_heads * m.head_dim
        inner = attention * (3 * m.num_heads * m.head_dim + 2 * key_value) + 4 * mlp * m.ffn_hidden
        # Autocast keeps a rounded copy of a norm's output for each of the five products that read it.
        outer = self._per_token(6 * m.hidden)
        if m.autocast:
            outer = self._per_token(4 * m.hidden) + self._per_token(5 * m.hidden, rounded=True)
        masks = 2 * m.hidden * self.tokens_per_micro_batch if m.dropout else 0
        return outer + self._per_token(inner, rounded=True) + masks

    def _head_bytes(self, vocab: float) -> float:
        """Softmax and final norm; kept of as many micro-batches as are in flight on the last stage."""
        return self._per_token(vocab * self.model.vocab_size + 2 * self.model.hidden)

    def _per_token(self, width: float, *, rounded: bool = False) -> float:
        size = _ROUNDED_BYTES if rounded and self.model.autocast else self.bytes_per_element
        return size * width * self.tokens_per_micro_batch


@lru_cache(maxsize=64)
def _elements(model: ModelSpec) -> Mapping[int, int]:
    """Parameters of the embedding, of a layer (they are alike), and of final norm and head."""
    return {part: sum(prod(t.shape) for t in model.tensors if t.layer == part) for part in (EMBEDDING, 0, HEAD)}
