"""The demo's decoder as a plain `torch.nn` program: nothing of the engine's, except the shapes.

T tokens, D hidden, H query heads, G key/value heads, K head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from resihp_plan import ModelSpec


class Block(nn.Module):
    """Grouped-query attention and gated MLP, pre-norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        d, kv = spec.hidden, spec.num_kv_heads * spec.head_dim
        self.attn_norm = nn.RMSNorm(d, spec.norm_eps)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, n, bias=False) for n in (d, kv, kv, d))
        self.mlp_norm = nn.RMSNorm(d, spec.norm_eps)
        self.w_gate, self.w_up = (nn.Linear(d, spec.ffn_hidden, bias=False) for _ in range(2))
        self.w_down = nn.Linear(spec.ffn_hidden, d, bias=False)

    def forward(self, x_TD: Tensor, lengths: Sequence[int], cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.attn_norm(x_TD)
        q, k, v = (w(normed).view(len(x_TD), -1, self.spec.head_dim) for w in (self.wq, self.wk, self.wv))
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        mixed = [
            fn.scaled_dot_product_attention(
                q.transpose(0, 1)[None],
                k.transpose(0, 1)[None],
                v.transpose(0, 1)[None],
                is_causal=True,
                enable_gqa=True,
            )[0].transpose(0, 1)
            for q, k, v in zip(*(torch.split(t, list(lengths)) for t in (q, k, v)), strict=True)
        ]
        x_TD = x_TD + self.wo(torch.cat(mixed).flatten(1))
        normed = self.mlp_norm(x_TD)
        out: Tensor = x_TD + self.w_down(fn.silu(self.w_gate(normed)) * self.w_up(normed))
        return out


def _rotate(x_THK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x_THK.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class PlainStage(nn.Module):
    """Layers start..stop; the first stage embeds, the last one returns the loss summed over tokens."""

    def __init__(self, spec: ModelSpec, start: int, stop: int) -> None:
        super().__init__()
        self.spec = spec
        self.embed = nn.Embedding(spec.vocab_size, spec.hidden) if start == 0 else None
        self.layers = nn.ModuleDict({str(i): Block(spec) for i in range(start, stop)})
        self.is_last = stop == spec.num_layers
        if self.is_last:
            self.norm = nn.RMSNorm(spec.hidden, spec.norm_eps)
            self.head = nn.Linear(spec.hidden, spec.vocab_size, bias=False)

    def forward(
        self, x: Tensor | None, lengths: Sequence[int], inputs: Tensor, targets: Tensor, positions: Tensor
    ) -> Tensor:
        if self.embed is not None:
            x = self.embed(inputs)
        assert x is not None
        exponents = torch.arange(0, self.spec.head_dim, 2, dtype=torch.float64) / self.spec.head_dim
        angles = (positions.double()[:, None] * self.spec.rope_theta**-exponents)[:, None, :]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers.values():
            x = layer(x, lengths, cos, sin)
        if not self.is_last:
            return x
        return fn.cross_entropy(self.head(self.norm(x)), targets, reduction="sum")
