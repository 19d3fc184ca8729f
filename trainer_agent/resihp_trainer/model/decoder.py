"""One pipeline stage of the decoder on one rank.

Shapes: T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as fn

from resihp_plan import ModelSpec
from resihp_trainer.model.layers import Linear, attention, embed, mlp, rms_norm, rotary_tables
from resihp_trainer.model.loss import cross_entropy_sum
from resihp_trainer.model.micro_batch import MicroBatch
from resihp_trainer.model.parallel import TensorParallel, enter

_ATTENTION = ("wq", "wk", "wv", "wo")
_MLP = ("w_gate", "w_up", "w_down")


class Stage:
    """Layers `layer_start..layer_stop` of the model with this rank's shards.

    `parameters` maps tensor names to shards and is read at every call, so that updates in place are seen. The first
    stage turns tokens into activations, the last one activations into the summed loss.
    """

    def __init__(
        self,
        model: ModelSpec,
        layer_start: int,
        layer_stop: int,
        parameters: Mapping[str, Tensor],
        tp: TensorParallel,
        vocab_start: int = 0,
        linear: Linear = fn.linear,
    ) -> None:
        self._model = model
        self._layers = range(layer_start, layer_stop)
        self._parameters = parameters
        self._tp = tp
        self._vocab_start = vocab_start
        self._linear = linear
        self.is_first = layer_start == 0
        self.is_last = layer_stop == model.num_layers

    def forward(self, micro_batch: MicroBatch, x_TD: Tensor | None) -> Tensor:
        """Activations [T, D] for the next stage, or on the last stage the loss summed over tokens (a scalar).

        `x_TD` comes from the previous stage; it is None on the first.
        """
        p, tp, model = self._parameters, self._tp, self._model
        if x_TD is None:
            x_TD = embed(micro_batch.inputs, p["embed.weight"], self._vocab_start, tp)
        rotary = rotary_tables(micro_batch.positions, model.head_dim, model.rope_theta, x_TD.dtype)
        for i in self._layers:
            name = f"layers.{i}."
            attn = {w: p[f"{name}{w}.weight"] for w in _ATTENTION}
            gated = {w: p[f"{name}{w}.weight"] for w in _MLP}
            normed = rms_norm(x_TD, p[name + "attn_norm.weight"], model.norm_eps)
            x_TD = x_TD + attention(normed, attn, micro_batch.lengths, rotary, model.head_dim, tp, self._linear)
            x_TD = x_TD + mlp(rms_norm(x_TD, p[name + "mlp_norm.weight"], model.norm_eps), gated, tp, self._linear)
        if not self.is_last:
            return x_TD
        normed = enter(rms_norm(x_TD, p["norm.weight"], model.norm_eps), tp)
        logits_TV = self._linear(normed, p["head.weight"])
        return cross_entropy_sum(logits_TV, micro_batch.targets, self._vocab_start, tp)
