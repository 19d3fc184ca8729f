"""The model as the planner sees it: sizes, and every tensor with the dimension and grain of its tensor split."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Split(StrEnum):
    """How a tensor is divided inside a tensor-parallel group."""

    REPLICATED = "replicated"
    ATTENTION = "attention"
    """By key/value head group."""
    MLP = "mlp"
    """By block of hidden units."""
    VOCAB = "vocab"
    """By block of vocabulary entries."""


EMBEDDING = -1
"""`TensorSpec.layer` of the embedding: it lives with the first stage, and with the last one too if the head is tied."""
HEAD = -2
"""`TensorSpec.layer` of final norm and output head: they live with the last stage."""


@dataclass(frozen=True)
class TensorSpec:
    """One parameter tensor of the whole model."""

    name: str
    layer: int
    """Layer index, or `EMBEDDING`, or `HEAD`."""
    shape: tuple[int, ...]
    split: Split
    dim: int
    """Dimension that is cut (0 for replicated tensors, which are never cut)."""
    unit: int
    """Rows (or columns) along `dim` per unit of the split; shape[dim] = unit * num_units."""

    @property
    def num_units(self) -> int:
        return self.shape[self.dim] // self.unit


@dataclass(frozen=True)
class ModelSpec:
    """A LLaMA-style decoder; field meanings as in `resihp_messages.ModelConfig` (a test keeps the two equal)."""

    num_layers: int = 8
    hidden: int = 128
    num_heads: int = 8
    num_kv_heads: int = 4
    ffn_hidden: int = 352
    mlp_block: int = 16
    vocab_size: int = 256
    vocab_block: int = 16
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    init_std: float = 0.02
    qkv_bias: bool = False
    tied_embeddings: bool = False
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_original_context: int = 8192
    dropout: float = 0.0
    recompute: bool = False
    autocast: bool = False
    hf: str | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    def num_units(self, split: Split) -> int:
        """Units that a tensor-parallel group shares out: 1 for replicated tensors."""
        return {
            Split.REPLICATED: 1,
            Split.ATTENTION: self.num_kv_heads,
            Split.MLP: self.ffn_hidden // self.mlp_block,
            Split.VOCAB: self.vocab_size // self.vocab_block,
        }[split]

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every parameter, in model order: embedding, layers, final norm, head."""
        d, hd = self.hidden, self.head_dim
        heads_per_group = self.num_heads // self.num_kv_heads
        q_unit = heads_per_group * hd
        found = [TensorSpec("embed.weight", EMBEDDING, (self.vocab_size, d), Split.VOCAB, 0, self.vocab_block)]
        for i in range(self.num_layers):
            p = f"layers.{i}."
            found += [
                TensorSpec(p + "attn_norm.weight", i, (d,), Split.REPLICATED, 0, d),
                TensorSpec(p + "wq.weight", i, (self.num_heads * hd, d), Split.ATTENTION, 0, q_unit),
                TensorSpec(p + "wk.weight", i, (self.num_kv_heads * hd, d), Split.ATTENTION, 0, hd),
                TensorSpec(p + "wv.weight", i, (self.num_kv_heads * hd, d), Split.ATTENTION, 0, hd),
                TensorSpec(p + "wo.weight", i, (d, self.num_heads * hd), Split.ATTENTION, 1, q_unit),
                *self._biases(p, i, q_unit),
                TensorSpec(p + "mlp_norm.weight", i, (d,), Split.REPLICATED, 0, d),
                TensorSpec(p + "w_gate.weight", i, (self.ffn_hidden, d), Split.MLP, 0, self.mlp_block),
                TensorSpec(p + "w_up.weight", i, (self.ffn_hidden, d), Split.MLP, 0, self.mlp_block),
                TensorSpec(p + "w_down.weight", i, (d, self.ffn_hidden), Split.MLP, 1, self.mlp_block),
            ]
        found.append(TensorSpec("norm.weight", HEAD, (d,), Split.REPLICATED, 0, d))
        if not self.tied_embeddings:
            found.append(TensorSpec("head.weight", HEAD, (self.vocab_size, d), Split.VOCAB, 0, self.vocab_block))
        return tuple(found)

    def _biases(self, prefix: str, layer: int, q_unit: int) -> tuple[TensorSpec, ...]:
        if not self.qkv_bias:
            return ()
        kv = self.num_kv_heads * self.head_dim
        return (
            TensorSpec(prefix + "wq.bias", layer, (self.num_heads * self.head_dim,), Split.ATTENTION, 0, q_unit),
            TensorSpec(prefix + "wk.bias", layer, (kv,), Split.ATTENTION, 0, self.head_dim),
            TensorSpec(prefix + "wv.bias", layer, (kv,), Split.ATTENTION, 0, self.head_dim),
        )
