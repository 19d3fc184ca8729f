"""LLaMA and Qwen2 decoders as Hugging Face describes them: `config.json` and tensor names <-> `ModelSpec`. No files.

Supported: LLaMA 2 and 3, Qwen2 and 2.5: grouped-query attention, q/k/v bias, tied or untied embeddings, rotary scaling
`linear` and `llama3`. Anything else is refused with a ValueError that names the key: a model that is computed almost
as intended is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resihp_plan.model import ModelSpec

BIASED = {"llama": False, "qwen2": True}
"""Model type -> whether its q, k and v projections have biases."""
_LAYER = {
    "attn_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}
_OUTSIDE = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
_LARGEST_GRAIN = 128
_LEAST_UNITS = 16


def tensor_name(name: str) -> str:
    """Ours -> theirs.

    >>> tensor_name("layers.3.wq.bias")
    'model.layers.3.self_attn.q_proj.bias'
    """
    if name == "head.weight":
        return "lm_head.weight"
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"


def spec_of(config: Mapping[str, Any]) -> ModelSpec:
    """The model that `config` (the contents of a `config.json`) describes. Raises ValueError that names the key."""
    kind = config.get("model_type")
    if kind not in BIASED:
        raise ValueError(f"model_type {kind!r}: expected one of {', '.join(BIASED)}")
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"):
        if type(config.get(key)) is not int or config[key] < 1:
            raise ValueError(f"{key}: expected a positive integer, got {config.get(key)!r}")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    _refuse_unknown(config, head_dim=hidden // heads)
    return ModelSpec(
        num_layers=config["num_hidden_layers"],
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        ffn_hidden=config["intermediate_size"],
        mlp_block=grain(config["intermediate_size"]),
        vocab_size=config["vocab_size"],
        vocab_block=grain(config["vocab_size"]),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        init_std=float(config.get("initializer_range", 0.02)),
        qkv_bias=BIASED[kind],
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        **_rotary(config),
    )


def config_of(
    model: ModelSpec, *, dtype: str, max_positions: int, base: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """`config.json` of `model`; inverse of `spec_of` but for grains and what concerns training only.

    `dtype`: of the tensors, as torch names it; `max_positions`: longest context that readers may use; `base`: the
    config that the model came from, whose other keys are kept.
    """
    kind = "qwen2" if model.qkv_bias else "llama"
    kept = dict(base or {"architectures": [{"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[kind]]})
    kept.setdefault("max_position_embeddings", max_positions)
    for key in ("rope_parameters", "torch_dtype"):  # said by the keys below, which every version reads
        kept.pop(key, None)
    return {
        **kept,
        "model_type": kind,
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "intermediate_size": model.ffn_hidden,
        "vocab_size": model.vocab_size,
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "hidden_act": "silu",
        "tie_word_embeddings": model.tied_embeddings,
        "rope_theta": model.rope_theta,
        "rope_scaling": _scaling(model),
        "dtype": dtype,
    }


def grain(size: int) -> int:
    """Block in which a dimension of `size` is shared out: the largest power of two up to 128 that divides it and leaves
    at least 16 blocks; 1 if there is none.

    >>> grain(128_256), grain(11_008), grain(96), grain(50_257)
    (128, 128, 4, 1)
    """
    block = _LARGEST_GRAIN
    while block > 1 and (size % block or size // block < _LEAST_UNITS):
        block //= 2
    return block


def _refuse_unknown(config: Mapping[str, Any], head_dim: int) -> None:
    """Keys whose unusual values change the model."""
    usual: dict[str, tuple[Any, ...]] = {
        "hidden_act": (None, "silu"),
        "attention_bias": (None, False),
        "mlp_bias": (None, False),
        "use_sliding_window": (None, False),
        "head_dim": (None, head_dim),
    }
    for key, values in usual.items():
        if config.get(key) not in values:
            raise ValueError(f"{key} {config[key]!r} is not supported (only {values[-1]!r})")


def _rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary fields, from `rope_parameters` (newer) or `rope_theta` and `rope_scaling` (older)."""
    newer = config.get("rope_parameters") or {}
    found = {**(config.get("rope_scaling") or {}), **newer}
    theta = float(newer.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind == "default":
        return {"rope_theta": theta}
    if kind not in ("linear", "llama3"):
        raise ValueError(f"rope_scaling type {kind!r} is not supported (only default, linear, llama3)")
    fields: dict[str, Any] = {"rope_theta": theta, "rope_scaling": kind, "rope_factor": float(found["factor"])}
    if kind == "llama3":
        fields |= {
            "rope_low_freq_factor": float(found["low_freq_factor"]),
            "rope_high_freq_factor": float(found["high_freq_factor"]),
            "rope_original_context": int(found["original_max_position_embeddings"]),
        }
    return fields


def _scaling(model: ModelSpec) -> dict[str, Any] | None:
    if model.rope_scaling == "none":
        return None
    found: dict[str, Any] = {"rope_type": model.rope_scaling, "factor": model.rope_factor}
    if model.rope_scaling == "llama3":
        found |= {
            "low_freq_factor": model.rope_low_freq_factor,
            "high_freq_factor": model.rope_high_freq_factor,
            "original_max_position_embeddings": model.rope_original_context,
        }
    return found
