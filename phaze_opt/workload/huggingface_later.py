"""How the configurations of dense language models since 2023 are read.

A table as `phaze_opt.workload.huggingface_families` has it, with the defaults of the classes
(transformers 4.57). Not counted are the factors by which Granite, Cohere and OLMo scale residuals,
embeddings and logits: they are part of other operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phaze_opt.workload import huggingface_fields as fields
from phaze_opt.workload.config import LLAMA
from phaze_opt.workload.huggingface_families import GATED, LLAMA_KEYS, QWEN_KEYS, Family
from phaze_opt.workload.huggingface_fields import Plain, flag, refusal, whole_number

_GELU = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
_LAYER_NORM: Plain = {**LLAMA, "norm": "layer_norm"}
_NO_WINDOW: Plain = {"sliding_window": None}


def _family(
    name: str,
    keys: Mapping[str, tuple[str, object]],
    computed: Callable[[Plain], dict[str, Any]],
    *,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    activations: Mapping[str, str] = GATED,
    only: Plain = _NO_WINDOW,
    fixed: Plain = LLAMA,
    synonyms: Mapping[str, str] | None = None,
) -> Family:
    """Return a family whose classes have a name and the endings of all language models."""
    classes = (f"{name}ForCausalLM", f"{name}Model")
    keys = {**LLAMA_KEYS, **keys}
    return Family(keys, activation, activations, classes, only, fixed, synonyms or {}, computed)


def _sizes(
    layers: int, hidden: int, heads: int, feed_forward: int, vocabulary: int, sequence: int
) -> dict[str, tuple[str, object]]:
    """Return the keys of the sizes of a model with the defaults of its class."""
    return {
        "layers": ("num_hidden_layers", layers),
        "hidden": ("hidden_size", hidden),
        "heads": ("num_attention_heads", heads),
        "feed_forward": ("intermediate_size", feed_forward),
        "vocabulary": ("vocab_size", vocabulary),
        "sequence": ("max_position_embeddings", sequence),
    }


def _kv(heads: int) -> dict[str, tuple[str, object]]:
    """Return the key of key and value heads with its default."""
    return {"kv_heads": ("num_key_value_heads", heads)}


def _tied(value: bool) -> dict[str, tuple[str, object]]:
    """Return the key of the tied head with its default."""
    return {"tied": ("tie_word_embeddings", value)}


def _head(width: int) -> dict[str, tuple[str, object]]:
    """Return the key of the elements of a head with its default."""
    return {"head_elements": ("head_dim", width)}


def _partly_rotated(plain: Plain, hidden: int, heads: int, share: float) -> dict[str, Any]:
    """Compute the rotated part of a head, whose width may be stated."""
    count = whole_number(plain, "num_attention_heads", heads)
    width = whole_number(plain, "head_dim", 0) * count or whole_number(plain, "hidden_size", hidden)
    return {"rotary_elements": fields.rotary_elements(plain, width, count, share)}


def _slides_but(pattern: int) -> Callable[[Plain, int, int], Any]:
    """Return what computes windows where every ``pattern``-th layer has none.

    EXAONE 4 writes the pattern as letters, of local layers and a global one.
    """

    def compute(plain: Plain, layers: int, window: int) -> Any:
        letters = plain.get("sliding_window_pattern")
        if isinstance(letters, str) and letters == "L" * (len(letters) - 1) + "G":
            every = len(letters)
        else:
            every = whole_number(plain, "sliding_window_pattern", pattern) or 1
        slides = [(i + 1) % every != 0 for i in range(layers)]
        return fields.layer_windows(plain, layers, window, slides)

    return compute


def _olmo3(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 32)
    window = fields.window_of(plain, 4096)
    return {"windows": _slides_but(4)(plain, layers, window), **fields.attention_bias(plain)}


def _smollm3(plain: Plain) -> dict[str, Any]:
    layers = whole_number(plain, "num_hidden_layers", 36)
    window = fields.window_of(plain, 0) if flag(plain, "use_sliding_window", False) else 0
    rotated = fields.rotated_layers(plain, layers)
    slides = [window > 0 and not turns for turns in rotated]
    return {
        **fields.llama(plain),
        "windows": fields.layer_windows(plain, layers, window, slides),
        **fields.unrotated(rotated),
    }


def _without_rotation_where_all_is_seen(
    layers: int,
) -> Callable[[Plain], dict[str, Any]]:
    """Return what computes windows, and no rotation in layers without one."""

    def compute(plain: Plain) -> dict[str, Any]:
        count = whole_number(plain, "num_hidden_layers", layers)
        windows = _slides_but(4)(plain, count, fields.window_of(plain, 4096))
        rotated = [tokens > 0 for tokens in windows] or [True] * count
        return {
            "windows": windows,
            **fields.unrotated(rotated),
            **fields.attention_bias(plain),
        }

    return compute


def _bias(key: str) -> Callable[[Plain], dict[str, Any]]:
    """Return what computes the biases of all linear layers, which one key states."""
    return lambda plain: {"bias": flag(plain, key, False)}


def _glm(plain: Plain) -> dict[str, Any]:
    return {
        "query_key_value_bias": flag(plain, "attention_bias", True) or None,
        **_partly_rotated(plain, 4096, 32, 0.5),
    }


def _starcoder2(plain: Plain) -> dict[str, Any]:
    dropped = plain.get("residual_dropout") or 0.0
    if (plain.get("embedding_dropout") or 0.0) and not dropped:
        raise refusal("embedding_dropout", plain["embedding_dropout"], "0.0 without the other")
    layers = whole_number(plain, "num_hidden_layers", 30)
    window = fields.window_of(plain, 0)
    return {
        "bias": flag(plain, "use_bias", True),
        "windows": fields.layer_windows(plain, layers, window, [True] * layers),
        "embedding_dropout": bool(plain.get("embedding_dropout")) or not dropped,
    }


def _nemotron(plain: Plain) -> dict[str, Any]:
    return {**fields.llama(plain), **_partly_rotated(plain, 6144, 48, 0.5)}


def _stablelm(plain: Plain) -> dict[str, Any]:
    parallel = flag(plain, "use_parallel_residual", False)
    return {
        "query_key_value_bias": flag(plain, "use_qkv_bias", False) or None,
        "residual": "parallel_shared_norm" if parallel else "sequential",
        **_partly_rotated(plain, 2560, 32, 0.25),
    }


def _seed_oss(plain: Plain) -> dict[str, Any]:
    return {
        "query_key_value_bias": flag(plain, "attention_bias", True),
        "projection_bias": flag(plain, "attention_out_bias", False),
        "bias": flag(plain, "mlp_bias", False),
    }


def _gpt_bigcode(plain: Plain) -> dict[str, Any]:
    return {
        **fields.gpt2(plain),
        "kv_heads": 1 if flag(plain, "multi_query", True) else 0,
    }


_QWEN_VL_KEYS = QWEN_KEYS | {
    **_sizes(80, 8192, 64, 29568, 152064, 32768),
    **_kv(8),
}
_GLM_KEYS = {**_sizes(40, 4096, 32, 13696, 151552, 131072), **_kv(2), **_head(128)}
_COHERE_FIXED: Plain = {
    **_LAYER_NORM,
    "norm_parameters": "weight",
    "residual": "parallel_shared_norm",
}
_COHERE_SIZES = {**_sizes(40, 8192, 64, 22528, 256000, 8192), **_tied(True)}


LATER_FAMILIES: Mapping[str, Family] = {
    "olmo": _family(
        "Olmo",
        _sizes(32, 4096, 32, 11008, 50304, 2048),
        fields.attention_bias,
        only={**_NO_WINDOW, "clip_qkv": None},
        fixed={**_LAYER_NORM, "norm_parameters": "none"},
    ),
    "olmo2": _family(
        "Olmo2",
        _sizes(32, 4096, 32, 11008, 50304, 2048),
        fields.attention_bias,
        fixed={
            **LLAMA,
            "norm_position": "output",
            "query_key_norm": True,
            "head_norm": "whole",
        },
    ),
    "olmo3": _family(
        "Olmo3",
        _sizes(32, 4096, 32, 11008, 50304, 2048),
        _olmo3,
        only={},
        fixed={
            **LLAMA,
            "norm_position": "output",
            "query_key_norm": True,
            "head_norm": "whole",
        },
    ),
    "smollm3": _family(
        "SmolLM3",
        {**_sizes(36, 2048, 16, 11008, 128256, 32768), **_kv(4), **_tied(True)},
        _smollm3,
        only={},
    ),
    "ernie4_5": _family(
        "Ernie4_5",
        {
            **_sizes(18, 1024, 16, 3072, 103424, 131072),
            **_kv(2),
            **_head(128),
            **_tied(True),
        },
        _bias("use_bias"),
    ),
    "glm": _family("Glm", _GLM_KEYS, _glm),
    "glm4": _family("Glm4", _GLM_KEYS, _glm, fixed={**LLAMA, "norm_position": "both"}),
    "cohere": _family(
        "Cohere",
        _COHERE_SIZES,
        fields.attention_bias,
        only={**_NO_WINDOW, "use_qk_norm": False},
        fixed=_COHERE_FIXED,
    ),
    "cohere2": _family(
        "Cohere2",
        _COHERE_SIZES,
        _without_rotation_where_all_is_seen(40),
        only={"use_qk_norm": False},
        fixed=_COHERE_FIXED,
    ),
    "exaone4": _family(
        "Exaone4",
        {**_sizes(32, 4096, 32, 16384, 102400, 2048), **_kv(32)},
        _without_rotation_where_all_is_seen(32),
        only={},
        fixed={**LLAMA, "norm_position": "output", "query_key_norm": True},
    ),
    "starcoder2": _family(
        "Starcoder2",
        {
            **_sizes(30, 3072, 24, 12288, 49152, 4096),
            **_kv(2),
            **_tied(True),
            "dropout": ("residual_dropout", 0.0),
        },
        _starcoder2,
        activation=("hidden_act", "gelu_pytorch_tanh"),
        activations=_GELU,
        only={},
        fixed=_LAYER_NORM,
    ),
    "nemotron": _family(
        "Nemotron",
        _sizes(32, 6144, 48, 24576, 256000, 4096),
        _nemotron,
        activation=("hidden_act", "relu2"),
        activations={"relu2": "relu2"},
        fixed=_LAYER_NORM,
    ),
    "arcee": _family(
        "Arcee",
        _sizes(32, 2560, 32, 18432, 32000, 4096),
        fields.llama,
        activation=("hidden_act", "relu2"),
        activations={"relu2": "relu2"},
    ),
    "granite": _family("Granite", {}, fields.llama, fixed={**LLAMA, "embedding_scale": True}),
    "stablelm": _family(
        "StableLm",
        {**_sizes(32, 2560, 32, 6912, 50304, 4096), **_kv(32)},
        _stablelm,
        only={**_NO_WINDOW, "qk_layernorm": False, "hidden_dropout": 0.0},
        fixed=_LAYER_NORM,
    ),
    "phi": _family(
        "Phi",
        {**_sizes(24, 2048, 32, 8192, 51200, 2048), "dropout": ("resid_pdrop", 0.0)},
        lambda plain: {
            **fields.embedding_dropout(plain, ("embd_pdrop", 0.0), ("resid_pdrop", 0.0)),
            **_partly_rotated(plain, 2048, 32, 0.5),
        },
        activation=("hidden_act", "gelu_new"),
        activations=_GELU,
        only={**_NO_WINDOW, "qk_layernorm": False},
        fixed={
            **_LAYER_NORM,
            "bias": True,
            "head_bias": True,
            "residual": "parallel_shared_norm",
        },
    ),
    "seed_oss": _family(
        "SeedOss",
        {
            **_sizes(64, 4096, 80, 27648, 155136, 524288),
            **_kv(8),
            **_head(128),
            "dropout": ("residual_dropout", 0.1),
            "attention_dropout": ("attention_dropout", 0.1),
        },
        _seed_oss,
        fixed={**LLAMA, "embedding_dropout": False},
    ),
    "gpt_bigcode": Family(
        keys={
            "layers": ("n_layer", 12),
            "hidden": ("n_embd", 768),
            "heads": ("n_head", 12),
            "sequence": ("n_positions", 1024),
            "vocabulary": ("vocab_size", 50257),
            "feed_forward": ("n_inner", 0),
            "dropout": ("resid_pdrop", 0.1),
            "attention_dropout": ("attn_pdrop", 0.1),
            "tied": ("tie_word_embeddings", True),
        },
        activation=("activation_function", "gelu_pytorch_tanh"),
        activations=_GELU,
        architectures=("GPTBigCodeForCausalLM", "GPTBigCodeModel"),
        only={**_NO_WINDOW, "scale_attn_weights": True},
        computed=_gpt_bigcode,
    ),
    # The language models of images and text, where they are no family of their own.
    "qwen2_vl_text": _family(
        "Qwen2VLText",
        _QWEN_VL_KEYS,
        lambda plain: fields.qwen2({"max_window_layers": 80, "num_hidden_layers": 80, **plain}),
        only={},
        fixed={**LLAMA, "query_key_value_bias": True},
    ),
    "qwen3_vl_text": _family(
        "Qwen3VLText",
        {**QWEN_KEYS, **_head(128), "sequence": ("max_position_embeddings", 128000)},
        fields.attention_bias,
        fixed={**LLAMA, "query_key_norm": True},
    ),
}
"""By ``model_type``."""
