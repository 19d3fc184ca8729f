"""One pipeline stage of the decoder on one rank.

Shapes: T tokens, D hidden, V local vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import Tensor
from torch.nn import functional as fn

from resihp_plan import ModelSpec
from resihp_trainer.model.dropout import EMBEDDING_SITE, Dropout, layer_sites
from resihp_trainer.model.layers import attention, embed, mlp, rms_norm
from resihp_trainer.model.linear import Linear
from resihp_trainer.model.loss import cross_entropy_sum
from resihp_trainer.model.micro_batch import MicroBatch
from resihp_trainer.model.parallel import TensorParallel, enter
from resihp_trainer.model.recompute import recomputed
from resihp_trainer.model.rotary import Rotary, rotary_frequencies, rotary_tables

_ATTENTION = {"wq": "wq.weight", "wk": "wk.weight", "wv": "wv.weight", "wo": "wo.weight"}
_BIASES = {"bq": "wq.bias", "bk": "wk.bias", "bv": "wv.bias"}
_MLP = {"w_gate": "w_gate.weight", "w_up": "w_up.weight", "w_down": "w_down.weight"}


class Stage:
    """Layers `layer_start..layer_stop` of the model with this rank's shards.

    `parameters` maps tensor names to shards and is read at every call, so that updates in place are seen. The first
    stage turns tokens into activations, the last one activations into the summed loss. `seed` is that of dropout.
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
        seed: int = 0,
    ) -> None:
        self._model = model
        self._layers = range(layer_start, layer_stop)
        self._parameters = parameters
        self._tp = tp
        self._vocab_start = vocab_start
        self._linear = linear
        self._dropout = Dropout(model.dropout, seed)
        self._attention = {**_ATTENTION, **(_BIASES if model.qkv_bias else {})}
        self._frequencies = rotary_frequencies(model)
        self.is_first = layer_start == 0
        self.is_last = layer_stop == model.num_layers

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Everything counts: for evaluation."""
        trained, self._dropout = self._dropout, Dropout(0.0, 0)
        try:
            yield
        finally:
            self._dropout = trained

    def forward(self, micro_batch: MicroBatch, x_TD: Tensor | None) -> Tensor:
        """Activations [T, D] for the next stage, or on the last stage the loss summed over tokens (a scalar).

        `x_TD` comes from the previous stage; it is None on the first.
        """
        x_TD = self._activations(micro_batch, x_TD)
        if not self.is_last:
            return x_TD
        return cross_entropy_sum(self._logits(x_TD), micro_batch.targets, self._vocab_start, self._tp)

    def logits(self, micro_batch: MicroBatch, x_TD: Tensor | None) -> Tensor:
        """[T, V]: this rank's columns; on the last stage only."""
        return self._logits(self._activations(micro_batch, x_TD))

    def _activations(self, micro_batch: MicroBatch, x_TD: Tensor | None) -> Tensor:
        if x_TD is None:
            weight_VD = self._parameters["embed.weight"]
            x_TD = embed(micro_batch.inputs, weight_VD, self._vocab_start, self._tp)
            x_TD = self._dropout.apply(x_TD, micro_batch, EMBEDDING_SITE)
        rotary = rotary_tables(micro_batch.positions, self._frequencies, x_TD.dtype)
        for i in self._layers:
            layer = partial(self._layer, i, micro_batch, rotary)
            x_TD = recomputed(layer, x_TD) if self._model.recompute else layer(x_TD)
        return x_TD

    def _layer(self, i: int, micro_batch: MicroBatch, rotary: Rotary, x_TD: Tensor) -> Tensor:
        p, tp, model, drop = self._parameters, self._tp, self._model, self._dropout.apply
        name = f"layers.{i}."
        attn = {short: p[name + long] for short, long in self._attention.items()}
        gated = {short: p[name + long] for short, long in _MLP.items()}
        attention_site, mlp_site = layer_sites(i)
        normed = rms_norm(x_TD, p[name + "attn_norm.weight"], model.norm_eps)
        mixed = attention(normed, attn, micro_batch.lengths, rotary, model.head_dim, tp, self._linear)
        x_TD = x_TD + drop(mixed, micro_batch, attention_site)
        normed = rms_norm(x_TD, p[name + "mlp_norm.weight"], model.norm_eps)
        return x_TD + drop(mlp(normed, gated, tp, self._linear), micro_batch, mlp_site)

    def _logits(self, x_TD: Tensor) -> Tensor:
        p, model = self._parameters, self._model
        normed = enter(rms_norm(x_TD, p["norm.weight"], model.norm_eps), self._tp)
        head_VD = p["embed.weight" if model.tied_embeddings else "head.weight"]
        return self._linear(normed, head_VD).to(x_TD.dtype)
