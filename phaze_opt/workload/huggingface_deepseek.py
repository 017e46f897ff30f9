"""How the configurations of DeepSeek-V2 to V4, and of models with their attention, are read.

A table as `phaze_opt.workload.huggingface_families` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phaze_opt.workload.huggingface_experts import DEEPSEEK_NAMES, experts_of
from phaze_opt.workload.huggingface_families import NO_WINDOW, Family, language_model, llama_keys
from phaze_opt.workload.huggingface_fields import (
    Plain,
    inner_configuration,
    refusal,
    whole_number,
)


def _deepseek(version: int) -> Callable[[Plain], dict[str, Any]]:
    """Return what computes experts and latent attention of DeepSeek-V2, or of V3 and Kimi K2."""
    is_third = version == 3

    def compute(plain: Plain) -> dict[str, Any]:
        width = whole_number(plain, "moe_intermediate_size", 2048 if is_third else 1407)
        sizes = {
            "count": ("n_routed_experts", 256 if is_third else 64),
            "top_k": ("num_experts_per_tok", 8 if is_third else 6),
        }
        layers = whole_number(plain, "num_hidden_layers", 61 if is_third else 32)
        first = whole_number(plain, "first_k_dense_replace", 3 if is_third else 0)
        every = whole_number(plain, "moe_layer_freq", 1) or 1
        scores = plain.get("scoring_func") or ("sigmoid" if is_third else "softmax")
        if scores not in ("sigmoid", "softmax"):
            raise refusal("scoring_func", scores, '"sigmoid" or "softmax"')
        latent = {
            "kv_rank": whole_number(plain, "kv_lora_rank", 512),
            # Null means that queries come from the residual stream.
            "query_rank": whole_number(plain, "q_lora_rank", 0 if "q_lora_rank" in plain else 1536),
            "plain": whole_number(plain, "qk_nope_head_dim", 128),
            "rotary": whole_number(plain, "qk_rope_head_dim", 64),
            "value": whole_number(plain, "v_head_dim", 128),
        }
        shared = whole_number(plain, "n_shared_experts", 1 if is_third else 2) * width
        dense = [i for i in range(layers) if i < first or i % every]
        others = {"feed_forward": width, "shared": shared, "scores": scores}
        if is_third or plain.get("topk_method", "greedy") != "greedy":
            groups = ("n_group", "topk_group"), (8, 4) if is_third else (1, 1)
            for name, key, usual in zip(("groups", "top_groups"), *groups, strict=True):
                others[name] = whole_number(plain, key, usual) or 1
        return {"latent": latent, **experts_of(plain, sizes, dense, **others)}

    return compute


def _deepseek_v32(plain: Plain) -> dict[str, Any]:
    """Compute what DeepSeek-V3 has, and the indexer of keys."""
    return {**_deepseek(3)(plain), "indexer": _indexer(plain, 2048)}


def _indexer(plain: Plain, top_k: int) -> dict[str, int]:
    """Compute the indexer of keys, which takes so many where the configuration does not say it."""
    return {
        "heads": whole_number(plain, "index_n_heads", 64),
        "width": whole_number(plain, "index_head_dim", 128),
        "top_k": whole_number(plain, "index_topk", top_k),
    }


def _deepseek_v4(plain: Plain) -> dict[str, Any]:
    """Compute experts, chosen by a table in some layers, and compressed attention."""
    ratios, chosen = _compression_ratios(plain)
    sizes = {
        "count": ("n_routed_experts", 256),
        "top_k": ("num_experts_per_tok", 6),
        "feed_forward": ("moe_intermediate_size", 2048),
    }
    shared = whole_number(plain, "n_shared_experts", 1) * whole_number(
        plain, *sizes["feed_forward"]
    )
    compressed = {
        "ratios": ratios,
        "chosen_ratio": chosen,
        "indexer": _indexer(plain, 512),
        "window": whole_number(plain, "sliding_window", 128),
        "query_rank": whole_number(plain, "q_lora_rank", 1024),
        "rotary": whole_number(plain, "qk_rope_head_dim", 64),
        "groups": whole_number(plain, "o_groups", 8),
        "output_rank": whole_number(plain, "o_lora_rank", 1024),
        "streams": whole_number(plain, "hc_mult", 4),
    }
    # A square root of a softplus is as much work as a sigmoid.
    experts = experts_of(plain, sizes, (), shared=shared, scores="sigmoid")
    return {"compressed": compressed, "kv_heads": 1, **experts}


def _compression_ratios(plain: Plain) -> tuple[list[int], int]:
    """Compute how many tokens an entry of each layer stands for, and those of chosen entries."""
    layers = whole_number(plain, "num_hidden_layers", 43)
    rates = inner_configuration(plain, "compress_rates")
    named = {
        "sliding_attention": 0,
        "compressed_sparse_attention": whole_number(plain, "compress_rate_csa", 4),
        "heavily_compressed_attention": whole_number(plain, "compress_rate_hca", 128),
    }
    if not rates.keys() <= named.keys():
        raise refusal("compress_rates", rates, f"rates of {', '.join(named)}")
    named = {name: whole_number(rates, name, usual) for name, usual in named.items()}
    chosen, other = list(named.values())[1:]
    ratios, types = plain.get("compress_ratios"), plain.get("layer_types")
    if types is None and ratios is None:
        # The class chooses so: two layers that see all entries, then each kind in turn.
        ratios = [other if i < 2 or i % 2 == 0 else chosen for i in range(layers)]
    elif types is not None:
        if not isinstance(types, list) or not set(map(str, types)) <= named.keys():
            raise refusal("layer_types", types, f"a list of {', '.join(named)}")
        ratios = [named[str(kind)] for kind in types]
    if (
        not isinstance(ratios, list)
        or len(ratios) < layers
        or not all(ratio in (0, chosen, other) for ratio in ratios)
    ):
        raise refusal("compress_ratios", ratios, f"0, {chosen} and {other} for {layers} layers")
    return ratios[:layers], chosen


_GLM_DSA: Plain = {
    **{"num_hidden_layers": 78, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256},
    **{"n_group": 1, "topk_group": 1, "index_n_heads": 32},
}
"""What GLM-5 has where its configuration leaves it out, and DeepSeek-V3.2 has otherwise."""


def _glm_moe_dsa(plain: Plain) -> dict[str, Any]:
    """Compute what DeepSeek-V3.2 has, with an indexer in every layer."""
    kinds = plain.get("indexer_types") or []
    if not isinstance(kinds, list) or not set(map(str, kinds)) <= {"full"}:
        raise refusal("indexer_types", kinds, '"full" for all layers')
    return _deepseek_v32({**_GLM_DSA, **plain})


_GLM_LITE: Plain = {
    **{"num_hidden_layers": 47, "first_k_dense_replace": 1, "n_routed_experts": 64},
    **{"num_experts_per_tok": 4, "moe_intermediate_size": 1536, "n_group": 1, "topk_group": 1},
    **{"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256},
}
"""What GLM-4.7-Flash has where its configuration leaves it out, and DeepSeek-V3 has otherwise."""


def _latent_keys(
    layers: int, hidden: int, heads: int, feed_forward: int, vocabulary: int, sequence: int
) -> dict[str, tuple[str, object]]:
    """Return the keys of a model whose latent attention states the widths of its heads itself."""
    keys = llama_keys(layers, hidden, heads, feed_forward, vocabulary, sequence)
    return {name: key for name, key in keys.items() if name not in ("kv_heads", "head_elements")}


_DEEPSEEK3_KEYS = _latent_keys(61, 7168, 128, 18432, 129280, 4096)
_NO_BIAS: Plain = {**NO_WINDOW, "attention_bias": False, "mlp_bias": False}

DEEPSEEK_FAMILIES: Mapping[str, Family] = {
    "deepseek_v2": language_model(
        "DeepseekV2",
        _latent_keys(32, 4096, 32, 11008, 32000, 2048),
        _deepseek(2),
        only=_NO_BIAS,
        synonyms=DEEPSEEK_NAMES,
    ),
    "deepseek_v3": language_model(
        "DeepseekV3", _DEEPSEEK3_KEYS, _deepseek(3), only=_NO_BIAS, synonyms=DEEPSEEK_NAMES
    ),
    "deepseek_v32": language_model(
        "DeepseekV32", _DEEPSEEK3_KEYS, _deepseek_v32, only=_NO_BIAS, synonyms=DEEPSEEK_NAMES
    ),
    "deepseek_v4": language_model(
        "DeepseekV4",
        llama_keys(43, 4096, 64, None, 129280, 1048576, kv_heads=1, head_elements=512),
        _deepseek_v4,
        only={"attention_bias": False, "mlp_bias": False, "num_key_value_heads": 1},
    ),
    "glm4_moe_lite": language_model(
        "Glm4MoeLite",
        _latent_keys(47, 2048, 20, 10240, 154880, 202752),
        lambda plain: _deepseek(3)({**_GLM_LITE, **plain}),
        only={**_NO_BIAS, "mlp_layer_types": None},
        synonyms=DEEPSEEK_NAMES,
    ),
    "glm_moe_dsa": language_model(
        "GlmMoeDsa",
        _latent_keys(78, 6144, 64, 12288, 154880, 202752),
        _glm_moe_dsa,
        only={
            **_NO_BIAS,
            **{"mlp_layer_types": None, "index_topk_freq": 1, "index_topk_pattern": None},
        },
        synonyms=DEEPSEEK_NAMES,
    ),
    # Kimi K2 has the shape, and the classes, of DeepSeek-V3.
    "kimi_k2": language_model(
        "DeepseekV3", _DEEPSEEK3_KEYS, _deepseek(3), only=_NO_BIAS, synonyms=DEEPSEEK_NAMES
    ),
}
"""By ``model_type``."""
