"""Layers of the decoder on packed micro-batches.

Shapes: T tokens of the micro-batch, D hidden, H local query heads, G local key/value heads, K head dimension, F local
MLP units, V local vocabulary entries. "Local" is this rank's shard; it may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as fn

from resihp_trainer.model.linear import Linear
from resihp_trainer.model.parallel import TensorParallel, enter, leave
from resihp_trainer.model.rotary import Rotary, rotate


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Root mean square layer normalisation (Zhang & Sennrich 2019)."""
    return fn.rms_norm(x_TD, (x_TD.shape[-1],), weight_D, eps)


def attention(
    x_TD: Tensor,
    weights: Mapping[str, Tensor],
    lengths: Sequence[int],
    rotary: Rotary,
    head_dim: int,
    tp: TensorParallel,
    linear: Linear = fn.linear,
) -> Tensor:
    """Grouped-query attention (Ainslie et al. 2023), causal inside each document: work grows with the sum of l^2.

    `weights`: wq [H*K, D], wk and wv [G*K, D], wo [D, H*K] of this rank, and where the model has biases bq [H*K], bk
    and bv [G*K]. Returns the full sum over the group, [T, D].
    """
    x = enter(x_TD, tp)
    q = _projected(x, weights, "q", linear)
    if not weights["wq"].shape[0]:  # no head here: take part in the sum with nothing
        return leave(linear(q, weights["wo"]).to(x.dtype), tp)
    k, v = (_projected(x, weights, part, linear) for part in "kv")
    q_THK, k_TGK, v_TGK = (t.view(len(t), -1, head_dim) for t in (q, k, v))
    q_THK, k_TGK = rotate(q_THK, rotary), rotate(k_TGK, rotary)
    sizes = list(lengths)
    mixed = [
        fn.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], is_causal=True, enable_gqa=True
        )[0].transpose(0, 1)
        for q, k, v in zip(*(torch.split(t, sizes) for t in (q_THK, k_TGK, v_TGK)), strict=True)
    ]
    return leave(linear(torch.cat(mixed).flatten(1), weights["wo"]).to(x.dtype), tp)


def _projected(x_TD: Tensor, weights: Mapping[str, Tensor], part: str, linear: Linear) -> Tensor:
    out = linear(x_TD, weights["w" + part])
    bias = weights.get("b" + part)
    return out if bias is None else (out + bias).to(out.dtype)


def mlp(x_TD: Tensor, weights: Mapping[str, Tensor], tp: TensorParallel, linear: Linear = fn.linear) -> Tensor:
    """SwiGLU (Shazeer 2020): `w_gate`, `w_up` [F, D], `w_down` [D, F]. Returns the full sum over the group, [T, D]."""
    x = enter(x_TD, tp)
    gated = fn.silu(linear(x, weights["w_gate"])) * linear(x, weights["w_up"])
    return leave(linear(gated, weights["w_down"]).to(x.dtype), tp)


def embed(tokens_T: Tensor, weight_VD: Tensor, vocab_start: int, tp: TensorParallel) -> Tensor:
    """Vocabulary-parallel embedding: the owner of a token contributes its row, the others zeros. Returns [T, D]."""
    if tp.group is None:
        return leave(fn.embedding(tokens_T, weight_VD), tp)
    local_T, mine_T = _local(tokens_T, vocab_start, weight_VD.shape[0])
    if weight_VD.shape[0] == 0:
        rows_TD = weight_VD.sum() + weight_VD.new_zeros(len(tokens_T), weight_VD.shape[1])
    else:
        rows_TD = fn.embedding(local_T, weight_VD) * mine_T[:, None]
    return leave(rows_TD, tp)


def _local(tokens_T: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """Indices into a shard (0 where foreign) and the mask of tokens that it owns."""
    mine = (tokens_T >= start) & (tokens_T < start + size)
    return torch.where(mine, tokens_T - start, 0), mine
