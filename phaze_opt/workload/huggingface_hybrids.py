"""How the configurations of state-space models and hybrids are read, as others are.

Prediction layers beyond the model's own are read where they are asked for. Multipliers of Falcon-H1
and Granite are part of other operators. A Mamba-2 configuration states no length: 2048
tokens stand for it, on which the published ones were trained (Dao and Gu 2024, appendix D).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phaze_opt.workload import huggingface_fields as fields
from phaze_opt.workload.config import LLAMA
from phaze_opt.workload.huggingface_experts import sparse_step
from phaze_opt.workload.huggingface_families import NO_WINDOW, Family, language_model, llama_keys
from phaze_opt.workload.huggingface_fields import Plain, flag, refusal, whole_number

_NEMOTRON_PATTERN = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
_LETTERS = {
    **dict.fromkeys(("mamba", "linear_attention"), "M"),
    **dict.fromkeys(("attention", "full_attention"), "*"),
    "mlp": "-",
    "moe": "E",
}
"""Of sub-layers, by their names in lists."""


def _letters(plain: Plain, key: str, default: str) -> str:
    """Return the sub-layers of a list of layer types, one letter each."""
    types = plain.get(key)
    if types is None:
        return default
    if not isinstance(types, list) or not all(str(name) in _LETTERS for name in types):
        raise refusal(key, types, f"a list of {', '.join(_LETTERS)}")
    return "".join(_LETTERS[str(name)] for name in types)


def _nemotron_h(plain: Plain) -> dict[str, Any]:
    pattern = plain.get("hybrid_override_pattern")
    if pattern is None:
        pattern = _letters(plain, "layers_block_type", _NEMOTRON_PATTERN)
    if not isinstance(pattern, str) or not set(pattern) <= set("M*-E") or not pattern:
        raise refusal("hybrid_override_pattern", pattern, "letters M, *, - and E")
    computed = {
        "layers": len(pattern),
        "pattern": " ".join(pattern),
        "bias": flag(plain, "mlp_bias", False),
        "query_key_value_bias": flag(plain, "attention_bias", False),
        "projection_bias": flag(plain, "attention_bias", False),
    }
    if "M" in pattern:
        computed["state_space"] = {
            "heads": whole_number(plain, "mamba_num_heads", 128),
            "head_elements": whole_number(plain, "mamba_head_dim", 64),
            "state": whole_number(plain, "ssm_state_size", 128),
            "groups": whole_number(plain, "n_groups", 8),
            "kernel": whole_number(plain, "conv_kernel", 4),
            "chunk": whole_number(plain, "chunk_size", 128),
            "convolution_bias": flag(plain, "use_conv_bias", True),
            "bias": flag(plain, "mamba_proj_bias", False),
        }
    if "E" in pattern:
        computed["experts"] = _nemotron_experts(plain)
    if "-" not in pattern:
        computed["feed_forward"] = 0
    return computed


def _nemotron_experts(plain: Plain) -> dict[str, Any]:
    """Return the experts of Nemotron 3."""
    shared = whole_number(plain, "moe_shared_expert_intermediate_size", 7688)
    experts: dict[str, Any] = {
        "count": whole_number(plain, "n_routed_experts", 8),
        "top_k": whole_number(plain, "num_experts_per_tok", 2),
        "feed_forward": whole_number(plain, "moe_intermediate_size", 7688),
        "shared": shared if whole_number(plain, "n_shared_experts", 1) else 0,
        "scores": "sigmoid",
        "groups": whole_number(plain, "n_group", 1) or 1,
        "top_groups": whole_number(plain, "topk_group", 1) or 1,
        "bias": flag(plain, "mlp_bias", False),
    }
    latent = whole_number(plain, "moe_latent_size", 0)
    return {**experts, "latent": latent} if latent else experts


def _mamba2(plain: Plain) -> dict[str, Any]:
    return {
        "pattern": " ".join("M" * whole_number(plain, "num_hidden_layers", 64)),
        "feed_forward": 0,
        "state_space": {
            "heads": whole_number(plain, "num_heads", 128),
            "head_elements": whole_number(plain, "head_dim", 64),
            "state": whole_number(plain, "state_size", 128),
            "groups": whole_number(plain, "n_groups", 8),
            "kernel": whole_number(plain, "conv_kernel", 4),
            "chunk": whole_number(plain, "chunk_size", 256),
            "norm": flag(plain, "rms_norm", True),
            "convolution_bias": flag(plain, "use_conv_bias", True),
            "bias": flag(plain, "use_bias", False),
        },
    }


def _mamba_keys(plain: Plain, inner: int, *, norm: bool = True) -> dict[str, Any]:
    """Return the state-space mixer of Bamba, Falcon-H1 and Granite 4, of some inner width."""
    heads = whole_number(plain, "mamba_n_heads", 128)
    elements = plain.get("mamba_d_head", "auto")
    if elements == "auto":
        elements = inner // max(1, heads)
    return {
        "heads": heads,
        "head_elements": elements,
        "state": whole_number(plain, "mamba_d_state", 256),
        "groups": whole_number(plain, "mamba_n_groups", 1),
        "kernel": whole_number(plain, "mamba_d_conv", 4),
        "chunk": whole_number(plain, "mamba_chunk_size", 256),
        "norm": norm,
        "convolution_bias": flag(plain, "mamba_conv_bias", True),
        "bias": flag(plain, "mamba_proj_bias", False),
    }


def _inner(plain: Plain) -> int:
    """Return the inner width of a state-space mixer that is some times that of the stream."""
    return whole_number(plain, "mamba_expand", 2) * whole_number(plain, "hidden_size", 4096)


def _bamba(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 32)
    attends = plain.get("attn_layer_indices") or []
    if not isinstance(attends, list) or not all(isinstance(layer, int) for layer in attends):
        raise refusal("attn_layer_indices", attends, "a list of layers")
    hidden = whole_number(plain, "hidden_size", 4096)
    heads = whole_number(plain, "num_attention_heads", 32)
    return {
        "pattern": " ".join("*-" if i in attends else "M-" for i in range(layers)),
        "state_space": _mamba_keys(plain, _inner(plain)),
        # The class fixes half of a head, whatever the file says.
        "rotary_elements": fields.rotary_elements({}, hidden, heads, 0.5),
    }


def _falcon_h1(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 32)
    inner = whole_number(plain, "mamba_d_ssm", 0 if "mamba_d_ssm" in plain else 1024)
    norm = flag(plain, "mamba_rms_norm", False)
    return {
        "pattern": " ".join(["H-"] * layers),
        "state_space": _mamba_keys(plain, inner or _inner(plain), norm=norm),
        **fields.llama(plain),
    }


def _granitemoehybrid(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 32)
    mixers = _letters(plain, "layer_types", "M" * layers)
    count = whole_number(plain, "num_local_experts", 8)
    shared = whole_number(plain, "shared_intermediate_size", 1024)
    positions = plain.get("position_embedding_type")
    if positions not in (None, "rope", "nope"):
        raise refusal("position_embedding_type", positions, '"rope", "nope" or null')
    computed = {
        "pattern": " ".join(mixer + ("E" if count else "-") for mixer in mixers),
        "positions": "rotary" if positions == "rope" else "none",
        "feed_forward": 0 if count else shared,
        **fields.attention_bias(plain),
    }
    if "M" in mixers:
        computed["state_space"] = _mamba_keys(plain, _inner(plain))
    if count:
        computed["experts"] = {
            "count": count,
            "top_k": whole_number(plain, "num_experts_per_tok", 2),
            "feed_forward": whole_number(plain, "intermediate_size", 11008),
            "shared": shared,
        }
    return computed


def _qwen3_next(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 48)
    every = whole_number(plain, "full_attention_interval", 4) or 1
    default = "".join("M" if (i + 1) % every else "*" for i in range(layers))
    mixers = _letters(plain, "layer_types", default).replace("M", "D")
    dense = set(sparse_step(plain, layers))
    networks = ["-" if i in dense else "E" for i in range(len(mixers))]
    heads = whole_number(plain, "num_attention_heads", 16)
    width = whole_number(plain, "head_dim", 256) * heads
    computed: dict[str, Any] = {
        "pattern": " ".join(map("".join, zip(mixers, networks, strict=True))),
        "rotary_elements": fields.rotary_elements(plain, width, heads, 0.25),
        **fields.attention_bias(plain),
    }
    if "D" in mixers:
        computed["delta_net"] = {
            "heads": whole_number(plain, "linear_num_value_heads", 32),
            "head_elements": whole_number(plain, "linear_value_head_dim", 128),
            "key_heads": whole_number(plain, "linear_num_key_heads", 16),
            "key_elements": whole_number(plain, "linear_key_head_dim", 128),
            "kernel": whole_number(plain, "linear_conv_kernel_dim", 4),
        }
    if "E" in networks:
        computed["experts"] = {
            "count": whole_number(plain, "num_experts", 512),
            "top_k": whole_number(plain, "num_experts_per_tok", 10),
            "feed_forward": whole_number(plain, "moe_intermediate_size", 512),
            "shared": whole_number(plain, "shared_expert_intermediate_size", 512),
            "shared_gate": True,
        }
    return computed if dense else {**computed, "feed_forward": 0}


def _qwen3_5(plain: Plain) -> dict[str, Any]:
    """Compute what Qwen3-Next has, without experts."""
    layers = whole_number(plain, "num_hidden_layers", 32)
    return _qwen3_next({**plain, "num_hidden_layers": layers, "mlp_only_layers": [*range(layers)]})


_QWEN3_5_MOE: Plain = {"num_hidden_layers": 40, "num_experts": 256, "num_experts_per_tok": 8}
"""What Qwen3.5's mixtures have where their configuration leaves it out."""

_RELU2 = {"relu2": "relu2"}
_GATED_ATTENTION = {**LLAMA, "query_key_norm": True, "output_gate": True}

HYBRID_FAMILIES: Mapping[str, Family] = {
    "nemotron_h": language_model(
        "NemotronH",
        llama_keys(32, 4096, 32, 21504, 131072, 4096, kv_heads=8, head_elements=128)
        | {"dropout": ("hidden_dropout", 0.0)},
        _nemotron_h,
        only={**NO_WINDOW, "mamba_hidden_act": "silu", "use_bias": False},
        fixed={**LLAMA, "positions": "none"},
        activation=("mlp_hidden_act", "relu2"),
        activations=_RELU2,
        synonyms={
            **{"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel"},
            **{"mamba_conv_bias": "use_conv_bias", "mamba_chunk_size": "chunk_size"},
            **{"attention_head_dim": "head_dim", "num_local_experts": "n_routed_experts"},
        },
    ),
    "mamba2": language_model(
        "Mamba2",
        {
            "layers": ("num_hidden_layers", 64),
            "hidden": ("hidden_size", 4096),
            "heads": ("num_heads", 128),
            "head_elements": ("head_dim", 64),
            "sequence": ("max_position_embeddings", 2048),
            "vocabulary": ("vocab_size", 32768),
            "tied": ("tie_word_embeddings", False),
        },
        _mamba2,
        only={},
        fixed={**LLAMA, "positions": "none"},
    ),
    "bamba": language_model(
        "Bamba",
        llama_keys(32, 4096, 32, 14336, 128000, 262144, kv_heads=8),
        _bamba,
        only={"mlp_bias": False, "attention_bias": False},
    ),
    "falcon_h1": language_model(
        "FalconH1",
        llama_keys(32, 4096, 32, 14336, 128000, 8192, kv_heads=8),
        _falcon_h1,
        only={"projectors_bias": False, "mamba_proj_bias": False},
    ),
    "granitemoehybrid": language_model(
        "GraniteMoeHybrid",
        llama_keys(32, 4096, 32, None, 32000, 2048),
        _granitemoehybrid,
        only={},
        fixed={**LLAMA, "embedding_scale": True},
        synonyms={"num_experts": "num_local_experts", "layers_block_type": "layer_types"},
    ),
    "qwen3_next": language_model(
        "Qwen3Next",
        llama_keys(48, 2048, 16, 5632, 151936, 32768, kv_heads=2, head_elements=256),
        _qwen3_next,
        only={},
        fixed=_GATED_ATTENTION,
        synonyms={"num_local_experts": "num_experts"},
    ),
    "qwen3_5_text": language_model(
        "Qwen3_5",
        llama_keys(32, 4096, 16, 12288, 248320, 32768, kv_heads=4, head_elements=256),
        _qwen3_5,
        only={},
        fixed=_GATED_ATTENTION,
    ),
    "qwen3_5_moe_text": language_model(
        "Qwen3_5Moe",
        llama_keys(40, 2048, 16, 5632, 248320, 32768, kv_heads=2, head_elements=256),
        lambda plain: _qwen3_next({**_QWEN3_5_MOE, **plain}),
        only={},
        fixed=_GATED_ATTENTION,
        synonyms={"num_local_experts": "num_experts"},
    ),
}
"""By ``model_type``."""
