"""What forward and backward keep of a micro-batch on one member of a TP group, as `resihp_trainer` allocates it.

Kept per token and layer, in elements of the residual stream's size: 6 hidden (two norms, two sums), 3 query and 2
key/value widths, 4 MLP widths, the latter three by the member's share. Attention scores are never kept. A split
backward keeps, from its input half to its weight half, what the products of the weights need: in and out of every
linear layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resihp_plan.model import ModelSpec, Split
from resihp_plan.plan import Schedule

_ROUNDED_BYTES = 2
"""Of an element in bfloat16."""
Share = Mapping[Split, float]
"""A member's part of each split's units."""


@dataclass(frozen=True)
class Activations:
    """Bytes of one micro-batch; `element_bytes` of an element of the residual stream."""

    model: ModelSpec
    tokens: int
    element_bytes: int

    @property
    def stage(self) -> float:
        """Whatever the layers: the stage's input."""
        return self._per_token(self.model.hidden)

    def layer(self, share: Share) -> float:
        """Of one layer."""
        return self._per_token(self.model.hidden) if self.model.recompute else self._computed(share)

    def products(self, share: Share) -> float:
        """Of one layer, from the input half of a split backward to the weight half."""
        query, key_value, mlp = self._widths(share)
        outer = (7 if self.model.autocast else 4) * self.model.hidden
        return self._per_token(outer + 2 * query + 2 * key_value + 3 * mlp, rounded=True)

    def head(self, share: Share) -> float:
        """Softmax and final norm."""
        return self._per_token(share[Split.VOCAB] * self.model.vocab_size + 2 * self.model.hidden)

    def layer_working(self, share: Share) -> float:
        """For a moment in one layer: gradients of the MLP's products and of the residual stream, or with recomputation
        all that it would keep otherwise. Drawing a dropout mask takes less."""
        hidden = self.model.hidden
        found = self._per_token(3 * hidden) + self._per_token(self._widths(share)[2], rounded=True)
        if self.model.recompute:
            found += self._computed(share) + self._per_token(3 * hidden)
        return found

    def head_working(self, share: Share) -> float:
        """For a moment in the head: logits and their exponentials."""
        return self._per_token(2 * share[Split.VOCAB] * self.model.vocab_size)

    def _computed(self, share: Share) -> float:
        query, key_value, mlp = self._widths(share)
        hidden = self.model.hidden
        # Autocast keeps a rounded copy of a norm's output for each of the five products that read it.
        outer = self._per_token(6 * hidden)
        if self.model.autocast:
            outer = self._per_token(4 * hidden) + self._per_token(5 * hidden, rounded=True)
        masks = 2 * hidden * self.tokens if self.model.dropout else 0
        return outer + self._per_token(3 * query + 2 * key_value + 4 * mlp, rounded=True) + masks

    def _widths(self, share: Share) -> tuple[float, float, float]:
        """Of queries, of keys, and of the MLP, on this member."""
        m = self.model
        attention = share[Split.ATTENTION] * m.head_dim
        return attention * m.num_heads, attention * m.num_kv_heads, share[Split.MLP] * m.ffn_hidden

    def _per_token(self, width: float, *, rounded: bool = False) -> float:
        size = _ROUNDED_BYTES if rounded and self.model.autocast else self.element_bytes
        return size * width * self.tokens


def held_units(
    schedule: Schedule, num_stages: int, stage: int, model: ModelSpec, *, mixed: bool = False
) -> tuple[int, int]:
    """How many micro-batches a stage holds at most: whole ones, and beside them late ones, which lack only their weight
    gradients. A layer that is computed again keeps little while whole, but its products like any other: of the
    micro-batch in its backward too. `mixed`: in a replica that exchanges units."""
    most = schedule.in_flight(num_stages, stage, mixed=mixed)
    if not schedule.splits_backward:
        return most, 0
    whole = schedule.warm_up(num_stages, stage) + 1
    return whole, most - whole + model.recompute
