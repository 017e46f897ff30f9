"""How the configurations of mixtures of experts are read, as `huggingface_families` reads others.

Of Llama 4, the factor that scales queries by their position in layers without rotation is not
counted; of DBRX, the limits of queries, keys and values are part of other operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from phaze_opt.workload import huggingface_fields as fields
from phaze_opt.workload.config import LLAMA
from phaze_opt.workload.huggingface_families import NO_WINDOW, Family, language_model, llama_keys
from phaze_opt.workload.huggingface_fields import (
    Plain,
    flag,
    inner_configuration,
    refusal,
    whole_number,
)


def experts_of(
    plain: Plain, defaults: Mapping[str, tuple[str, int]], dense: Iterable[int], **others: Any
) -> dict[str, Any]:
    """Return the fields of the experts; a model without dense blocks has no other inner width.

    Parameters
    ----------
    plain
        The configuration.
    defaults
        By field of `phaze_opt.workload.experts.Experts`: the key, and its default.
    dense
        Blocks without experts.
    others
        Fields that hang on no key.
    """
    read = {name: whole_number(plain, *key) for name, key in defaults.items()}
    dense_layers = tuple(dense)
    computed = {"experts": {**read, "dense_layers": dense_layers, **others}}
    return computed if dense_layers else {**computed, "feed_forward": 0}


def sparse_step(plain: Plain, layers: int) -> list[int]:
    """Return the dense blocks of Qwen's mixtures."""
    step = whole_number(plain, "decoder_sparse_step", 1) or 1
    only = plain.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(isinstance(layer, int) for layer in only):
        raise refusal("mlp_only_layers", only, "a list of layers")
    listed = set(only)
    return [i for i in range(layers) if i in listed or (i + 1) % step]


def _mixtral(plain: Plain) -> dict[str, Any]:
    sizes = {
        "count": ("num_local_experts", 8),
        "top_k": ("num_experts_per_tok", 2),
        "feed_forward": ("intermediate_size", 14336),
    }
    return {**fields.every_layer_slides(0)(plain), **experts_of(plain, sizes, ())}


def _qwen2_moe(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 24)
    sizes = {
        "count": ("num_experts", 60),
        "top_k": ("num_experts_per_tok", 4),
        "feed_forward": ("moe_intermediate_size", 1408),
        "shared": ("shared_expert_intermediate_size", 5632),
    }
    windows = fields.qwen2({"max_window_layers": 28, **plain, "num_hidden_layers": layers})
    return {
        **windows,
        "query_key_value_bias": flag(plain, "qkv_bias", True),
        **experts_of(plain, sizes, sparse_step(plain, layers), shared_gate=True),
    }


def _qwen3_moe(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 24)
    sizes = {
        "count": ("num_experts", 128),
        "top_k": ("num_experts_per_tok", 8),
        "feed_forward": ("moe_intermediate_size", 768),
    }
    slides = flag(plain, "use_sliding_window", False)
    window = {"num_hidden_layers": layers, "sliding_window": plain.get("sliding_window", 4096)}
    return {
        **(fields.every_layer_slides(0)(window) if slides else {}),
        **fields.attention_bias(plain),
        **experts_of(plain, sizes, sparse_step(plain, layers)),
    }


def _gpt_oss(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 36)
    sizes = {
        "count": ("num_local_experts", 128),
        "top_k": ("num_experts_per_tok", 4),
        "feed_forward": ("intermediate_size", 2880),
    }
    bias = flag(plain, "attention_bias", True)
    return {
        "windows": fields.layer_windows(plain, layers, 128, [i % 2 == 0 for i in range(layers)]),
        "query_key_value_bias": bias,
        "projection_bias": bias,
        **experts_of(plain, sizes, (), router_bias=True, bias=True),
    }


def _glm4_moe(plain: Plain) -> dict[str, Any]:
    width = whole_number(plain, "moe_intermediate_size", 1408)
    sizes = {
        "count": ("n_routed_experts", 128),
        "top_k": ("num_experts_per_tok", 8),
        "feed_forward": ("moe_intermediate_size", 1408),
    }
    heads = whole_number(plain, "num_attention_heads", 96)
    stream = whole_number(plain, "hidden_size", 4096)
    width_of_heads = whole_number(plain, "head_dim", 0) * heads or stream
    return {
        "query_key_value_bias": flag(plain, "attention_bias", False) or None,
        "query_key_norm": flag(plain, "use_qk_norm", False),
        "rotary_elements": fields.rotary_elements(plain, width_of_heads, heads, 0.5),
        **experts_of(
            plain,
            sizes,
            range(whole_number(plain, "first_k_dense_replace", 1)),
            shared=whole_number(plain, "n_shared_experts", 1) * width,
            scores="sigmoid",
        ),
    }


def _dots1(plain: Plain) -> dict[str, Any]:
    """Compute what GLM-4.5 has; heads are normalised and rotated whole in every model."""
    return _glm4_moe({"use_qk_norm": True, "partial_rotary_factor": 1.0, **plain})


def _bailing_moe_v2(plain: Plain) -> dict[str, Any]:
    """Compute what dots.llm1 has, with groups of experts, of Ling and Ring 2.0."""
    computed = _dots1({**_LING, **plain})
    computed["experts"] |= {
        "groups": whole_number(plain, "n_group", 8) or 1,
        "top_groups": whole_number(plain, "topk_group", 4) or 1,
    }
    return {**computed, "query_key_value_bias": flag(plain, "use_qkv_bias", False) or None}


def _ernie4_5_moe(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 28)
    first = whole_number(plain, "moe_layer_start_index", 1)
    last = plain.get("moe_layer_end_index", -1)
    every = whole_number(plain, "moe_layer_interval", 1) or 1
    end = layers if last in (None, -1) else whole_number(plain, "moe_layer_end_index", 0) + 1
    width = whole_number(plain, "moe_intermediate_size", 1536)
    sizes = {
        "count": ("moe_num_experts", 64),
        "top_k": ("moe_k", 6),
        "feed_forward": ("moe_intermediate_size", 1536),
    }
    dense = [i for i in range(layers) if not first <= i < end or (i + 1) % every]
    shared = whole_number(plain, "moe_num_shared_experts", 2) * width
    return experts_of(plain, sizes, dense, shared=shared)


def _minimax_m2(plain: Plain) -> dict[str, Any]:
    sizes = {
        "count": ("num_local_experts", 256),
        "top_k": ("num_experts_per_tok", 8),
        "feed_forward": ("intermediate_size", 1536),
    }
    kind = plain.get("qk_norm_type") or "per_layer"
    if kind != "per_layer":
        raise refusal("qk_norm_type", kind, '"per_layer"')
    norm = flag(plain, "use_qk_norm", True)
    return {
        "rotary_elements": whole_number(plain, "rotary_dim", 64),
        "query_key_norm": norm,
        **({"head_norm": "whole"} if norm else {}),
        **experts_of(plain, sizes, (), scores="sigmoid"),
    }


def _llama4(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 48)
    sizes = {
        "count": ("num_local_experts", 16),
        "top_k": ("num_experts_per_tok", 1),
        "feed_forward": ("intermediate_size", 8192),
        "shared": ("intermediate_size", 8192),
    }
    step = whole_number(plain, "interleave_moe_layer_step", 1) or 1
    routed = plain.get("moe_layers")
    routed = list(range(step - 1, layers, step)) if routed is None else routed
    if not isinstance(routed, list) or not all(isinstance(layer, int) for layer in routed):
        raise refusal("moe_layers", routed, "a list of layers")
    dense = sorted({*range(layers)} - {*routed})
    chunk = whole_number(plain, "attention_chunk_size", 8192)
    rotated = fields.rotated_layers(plain, layers)
    norm = flag(plain, "use_qk_norm", True)
    return {
        "windows": tuple(chunk if turns else 0 for turns in rotated) if chunk else (),
        **({"chunked": True} if chunk else {}),
        **fields.unrotated(rotated),
        **fields.attention_bias(plain),
        "query_key_norm": norm,
        **({"head_norm": "unweighted"} if norm else {}),
        **experts_of(plain, sizes, dense, scores="sigmoid"),
    }


def _olmoe(plain: Plain) -> dict[str, Any]:
    sizes = {
        "count": ("num_experts", 64),
        "top_k": ("num_experts_per_tok", 8),
        "feed_forward": ("intermediate_size", 2048),
    }
    return {**fields.attention_bias(plain), **experts_of(plain, sizes, ())}


def _phimoe(plain: Plain) -> dict[str, Any]:
    """Compute what Mixtral has, with biases, of Phi-3.5-MoE."""
    has_head_bias = flag(plain, "lm_head_bias", False)
    return {
        **_mixtral({"num_local_experts": 16, "intermediate_size": 6400, **plain}),
        **fields.attention_bias(plain),
        **({"head_bias": True} if has_head_bias else {}),
    }


def _dbrx(plain: Plain) -> dict[str, Any]:
    """Compute what stands in the configurations inside: of attention, and of experts."""
    attention, experts = (inner_configuration(plain, f"{part}_config") for part in ("attn", "ffn"))
    act = inner_configuration(experts, "ffn_act_fn").get("name", "silu")
    if act != "silu":
        raise refusal("ffn_act_fn", act, '"silu"')
    sizes = {
        "count": ("moe_num_experts", 4),
        "top_k": ("moe_top_k", 1),
        "feed_forward": ("ffn_hidden_size", 3584),
    }
    return {
        "kv_heads": whole_number(attention, "kv_n_heads", 1),
        "attention_dropout": attention.get("attn_pdrop", 0.0),
        **fields.embedding_dropout(plain, ("emb_pdrop", 0.0), ("resid_pdrop", 0.0)),
        **experts_of(experts, sizes, ()),
    }


def _hunyuan_moe(plain: Plain) -> dict[str, Any]:
    """Compute experts as wide as the one that works on every token, of Hunyuan-A13B."""
    keys = ("num_experts", "moe_topk", "num_shared_expert")
    alike = {key: fields.same_of_all_layers(plain, key, 1) for key in keys}
    width = whole_number(plain, "intermediate_size", 11008)
    if fields.same_of_all_layers(plain, "moe_intermediate_size", width) != width:
        raise refusal("moe_intermediate_size", plain["moe_intermediate_size"], str(width))
    sizes = {"count": ("num_experts", 1), "top_k": ("moe_topk", 1)}
    shared = alike["num_shared_expert"] * width
    return {
        **fields.attention_bias(plain),
        **experts_of(alike, sizes, (), feed_forward=width, shared=shared),
    }


def _granitemoe(plain: Plain) -> dict[str, Any]:
    sizes = {
        "count": ("num_local_experts", 8),
        "top_k": ("num_experts_per_tok", 2),
        "feed_forward": ("intermediate_size", 11008),
    }
    return {**fields.attention_bias(plain), **experts_of(plain, sizes, ())}


DEEPSEEK_NAMES = dict.fromkeys(("num_experts", "num_local_experts"), "n_routed_experts")
_LOCAL = {"num_experts": "num_local_experts"}
_LING: Plain = {
    **{"n_routed_experts": 256, "moe_intermediate_size": 512, "head_dim": 128},
    **{"num_attention_heads": 16, "hidden_size": 2048},
}
"""What Ling 2.0 has where its configuration leaves it out, and GLM-4.5 has otherwise."""
EXPERT_FAMILIES: Mapping[str, Family] = {
    "mixtral": language_model(
        "Mixtral",
        llama_keys(32, 4096, 32, None, 32000, 131072, kv_heads=8),
        _mixtral,
        only={},
        synonyms=_LOCAL,
    ),
    "qwen2_moe": language_model(
        "Qwen2Moe",
        llama_keys(24, 2048, 16, 5632, 151936, 32768, kv_heads=16),
        _qwen2_moe,
        only={},
    ),
    "qwen3_moe": language_model(
        "Qwen3Moe",
        llama_keys(24, 2048, 32, 6144, 151936, 32768, kv_heads=4),
        _qwen3_moe,
        only={},
        fixed={**LLAMA, "query_key_norm": True},
        synonyms={"num_local_experts": "num_experts"},
    ),
    "gpt_oss": language_model(
        "GptOss",
        llama_keys(36, 2880, 64, None, 201088, 131072, kv_heads=8, head_elements=64),
        _gpt_oss,
        only={},
        fixed={**LLAMA, "sinks": True},
        synonyms={**_LOCAL, "experts_per_token": "num_experts_per_tok"},
    ),
    "glm4_moe": language_model(
        "Glm4Moe",
        llama_keys(46, 4096, 96, 10944, 151552, 131072, kv_heads=8),
        _glm4_moe,
        synonyms=DEEPSEEK_NAMES,
    ),
    "dots1": language_model(
        "Dots1",
        llama_keys(62, 4608, 32, 10944, 152064, 2048, kv_heads=32),
        _dots1,
        synonyms=DEEPSEEK_NAMES,
    ),
    # Ling and Ring 2.0 state either name; the first Ling has other classes, which are refused.
    **dict.fromkeys(
        ("bailing_moe", "bailing_moe_v2"),
        language_model(
            "BailingMoeV2",
            llama_keys(20, 2048, 16, 5120, 157184, 32768, kv_heads=4, head_elements=128),
            _bailing_moe_v2,
            only={**NO_WINDOW, "use_bias": False},
            synonyms={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
        ),
    ),
    "ernie4_5_moe": language_model(
        "Ernie4_5_Moe",
        llama_keys(28, 2560, 20, 12288, 103424, 131072, kv_heads=4, tied=True),
        _ernie4_5_moe,
        only={**NO_WINDOW, "use_bias": False},
    ),
    "minimax_m2": language_model(
        "MiniMaxM2",
        llama_keys(62, 3072, 48, None, 200064, 196608, kv_heads=8, head_elements=128),
        _minimax_m2,
        only={**NO_WINDOW, "shared_intermediate_size": 0},
    ),
    "llama4_text": language_model(
        "Llama4",
        llama_keys(48, 5120, 40, 11008, 202048, 131072, kv_heads=8, head_elements=128)
        | {"feed_forward": ("intermediate_size_mlp", 16384)},
        _llama4,
    ),
    "olmoe": language_model(
        "Olmoe",
        llama_keys(16, 2048, 16, None, 50304, 4096),
        _olmoe,
        only={**NO_WINDOW, "clip_qkv": None},
        fixed={**LLAMA, "query_key_norm": True, "head_norm": "whole"},
        synonyms={"num_local_experts": "num_experts"},
    ),
    "phimoe": language_model(
        "Phimoe",
        llama_keys(32, 4096, 32, None, 32064, 131072, kv_heads=8),
        _phimoe,
        only={},
        fixed={**LLAMA, "norm": "layer_norm"},
        synonyms=_LOCAL,
    ),
    "dbrx": language_model(
        "Dbrx",
        {
            "layers": ("n_layers", 24),
            "hidden": ("d_model", 2048),
            "heads": ("n_heads", 16),
            "sequence": ("max_seq_len", 2048),
            "vocabulary": ("vocab_size", 32000),
            "dropout": ("resid_pdrop", 0.0),
        },
        _dbrx,
        only={"tie_word_embeddings": False},
        fixed={**LLAMA, "norm": "layer_norm", "norm_parameters": "weight"},
        synonyms={
            **{"num_hidden_layers": "n_layers", "hidden_size": "d_model"},
            **{"num_attention_heads": "n_heads", "max_position_embeddings": "max_seq_len"},
        },
    ),
    "hunyuan_v1_moe": language_model(
        "HunYuanMoEV1",
        llama_keys(32, 4096, 32, None, 290943, 2048),
        _hunyuan_moe,
        only={**NO_WINDOW, "use_qk_norm": True, "use_cla": False, "moe_layer_num_skipped": 0},
        fixed={**LLAMA, "query_key_norm": True},
        synonyms={"attention_head_dim": "head_dim"},
    ),
    "granitemoe": language_model(
        "GraniteMoe",
        llama_keys(32, 4096, 32, None, 32000, 2048),
        _granitemoe,
        fixed={**LLAMA, "embedding_scale": True},
        synonyms=_LOCAL,
    ),
}
"""By ``model_type``. Multipliers of Granite's residuals and logits are part of other operators."""
