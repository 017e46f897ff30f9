"""How the configurations of dense language models are read.

A table as `phaze_opt.workload.huggingface_families` has it, with the defaults of the classes
(transformers 4.57). Not counted are the factors by which Granite, Cohere and OLMo scale residuals,
embeddings and logits: they are part of other operators. Fused attention is taken where positions
are rotary, and scores in memory elsewhere, as for the named models of the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phaze_opt.workload import huggingface_fields as fields
from phaze_opt.workload.config import LLAMA
from phaze_opt.workload.huggingface_families import (
    GATED,
    GELU,
    GELU_OR_RELU,
    NO_WINDOW,
    Family,
    language_model,
    llama_keys,
)
from phaze_opt.workload.huggingface_fields import Plain, flag, refusal, whole_number
from phaze_opt.workload.huggingface_images import mllama_crosses


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


def _without_rotation_where_all_is_seen(layers: int) -> Callable[[Plain], dict[str, Any]]:
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


def _mllama(plain: Plain) -> dict[str, Any]:
    """Compute the blocks that run without images: those that attend to them are left out."""
    layers = whole_number(plain, "num_hidden_layers", 40)
    return {"layers": layers - len([i for i in mllama_crosses(plain) if i < layers])}


def _internlm3(plain: Plain) -> dict[str, Any]:
    return {
        "bias": flag(plain, "bias", False),
        "query_key_value_bias": flag(plain, "qkv_bias", False),
        "projection_bias": flag(plain, "bias", False),
    }


def _gpt_bigcode(plain: Plain) -> dict[str, Any]:
    return {
        **fields.gpt2(plain),
        "kv_heads": 1 if flag(plain, "multi_query", True) else 0,
    }


_GPT2_KEYS = {
    "layers": ("n_layer", 12),
    "hidden": ("n_embd", 768),
    "heads": ("n_head", 12),
    "sequence": ("n_positions", 1024),
    "vocabulary": ("vocab_size", 50257),
    "feed_forward": ("n_inner", 0),
    "dropout": ("resid_pdrop", 0.1),
    "attention_dropout": ("attn_pdrop", 0.1),
    "tied": ("tie_word_embeddings", True),
}
_LLAMA_KEYS = llama_keys(32, 4096, 32, 11008, 32000, 2048)
_QWEN_KEYS = llama_keys(32, 4096, 32, 22016, 151936, 32768, kv_heads=32)
_QWEN3_KEYS = _QWEN_KEYS | {"head_elements": ("head_dim", 128)}
_GEMMA2_KEYS = {
    **llama_keys(26, 2304, 8, 9216, 256000, 8192, kv_heads=4, head_elements=256, tied=True),
    "attention_softcap": ("attn_logit_softcapping", 50.0),
    "logit_softcap": ("final_logit_softcapping", 30.0),
}
_GLM_KEYS = llama_keys(40, 4096, 32, 13696, 151552, 131072, kv_heads=2, head_elements=128)
_COHERE_KEYS = llama_keys(40, 8192, 64, 22528, 256000, 8192, tied=True)
_OLMO_KEYS = llama_keys(32, 4096, 32, 11008, 50304, 2048)

_ONE_WAY: Plain = {"use_bidirectional_attention": False}
_GEMMA_ACTIVATION = ("hidden_act", "gelu_pytorch_tanh")
_GEMMA_NAMES = {"hidden_activation": "hidden_act"}
_SCALED_EMBEDDING: Plain = {**LLAMA, "embedding_scale": True}
_GEMMA2_FIXED: Plain = {**_SCALED_EMBEDDING, "norm_position": "both"}
_RELU2 = {"relu2": "relu2"}
_LAYER_NORM: Plain = {**LLAMA, "norm": "layer_norm"}
_OLMO2_FIXED: Plain = {
    **LLAMA,
    "norm_position": "output",
    "query_key_norm": True,
    "head_norm": "whole",
}
_COHERE_FIXED: Plain = {
    **_LAYER_NORM,
    "norm_parameters": "weight",
    "residual": "parallel_shared_norm",
}

DENSE_FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        keys=_GPT2_KEYS,
        activation=("activation_function", "gelu_new"),
        activations=GELU_OR_RELU,
        architectures=("GPT2LMHeadModel", "GPT2Model"),
        only={
            **NO_WINDOW,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
        },
        synonyms={
            "num_hidden_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
        },
        computed=fields.gpt2,
    ),
    "llama": language_model(
        "Llama", _LLAMA_KEYS, fields.llama, only={**NO_WINDOW, "partial_rotary_factor": 1.0}
    ),
    "mistral": language_model(
        "Mistral",
        llama_keys(32, 4096, 32, 14336, 32000, 131072, kv_heads=8),
        fields.every_layer_slides(4096),
        only={"layer_types": None},
    ),
    # Queries scaled by their position, as in Llama 4, are not counted.
    "ministral3": language_model(
        "Ministral3",
        llama_keys(34, 4096, 32, 14336, 131072, 262144, kv_heads=8, head_elements=128),
        fields.every_layer_slides(0),
        only={},
    ),
    "qwen2": language_model(
        "Qwen2",
        _QWEN_KEYS,
        fields.qwen2,
        only={},
        fixed={**LLAMA, "query_key_value_bias": True},
    ),
    "qwen3": language_model(
        "Qwen3", _QWEN3_KEYS, fields.qwen3, only={}, fixed={**LLAMA, "query_key_norm": True}
    ),
    "phi3": language_model(
        "Phi3",
        {**llama_keys(32, 3072, 32, 8192, 32064, 4096), "dropout": ("resid_pdrop", 0.0)},
        fields.phi3,
        only={"layer_types": None},
    ),
    "gemma": language_model(
        "Gemma",
        llama_keys(28, 3072, 16, 24576, 256000, 8192, kv_heads=16, head_elements=256, tied=True),
        fields.attention_bias,
        activation=_GEMMA_ACTIVATION,
        only={**NO_WINDOW, **_ONE_WAY},
        fixed=_SCALED_EMBEDDING,
        synonyms=_GEMMA_NAMES,
    ),
    "gemma2": language_model(
        "Gemma2",
        _GEMMA2_KEYS,
        fields.gemma(2),
        activation=_GEMMA_ACTIVATION,
        only=_ONE_WAY,
        fixed=_GEMMA2_FIXED,
        synonyms=_GEMMA_NAMES,
    ),
    "gemma3_text": Family(
        keys=_GEMMA2_KEYS
        | {
            "sequence": ("max_position_embeddings", 131072),
            "vocabulary": ("vocab_size", 262208),
            "attention_softcap": ("attn_logit_softcapping", 0.0),
            "logit_softcap": ("final_logit_softcapping", 0.0),
        },
        activation=_GEMMA_ACTIVATION,
        activations=GATED,
        architectures=("Gemma3ForCausalLM", "Gemma3TextModel"),
        only=_ONE_WAY,
        fixed={**_GEMMA2_FIXED, "query_key_norm": True},
        synonyms={**_GEMMA_NAMES, "_sliding_window_pattern": "sliding_window_pattern"},
        computed=fields.gemma(6),
    ),
    "opt": language_model(
        "OPT",
        {
            "layers": ("num_hidden_layers", 12),
            "hidden": ("hidden_size", 768),
            "heads": ("num_attention_heads", 12),
            "feed_forward": ("ffn_dim", 3072),
            "embedding_size": ("word_embed_proj_dim", 0),
            "sequence": ("max_position_embeddings", 2048),
            "vocabulary": ("vocab_size", 50272),
            "dropout": ("dropout", 0.1),
            "attention_dropout": ("attention_dropout", 0.0),
            "inner_dropout": ("activation_dropout", 0.0),
            "bias": ("enable_bias", True),
            "tied": ("tie_word_embeddings", True),
        },
        fields.opt,
        activation=("activation_function", "relu"),
        activations=GELU_OR_RELU,
        only={**NO_WINDOW, "layerdrop": 0.0, "layer_norm_elementwise_affine": True},
        fixed={"embedding_dropout": False},
        synonyms={"d_model": "hidden_size"},
    ),
    "gpt_neox": language_model(
        "GPTNeoX",
        {
            "layers": ("num_hidden_layers", 44),
            "hidden": ("hidden_size", 6144),
            "heads": ("num_attention_heads", 64),
            "feed_forward": ("intermediate_size", 24576),
            "sequence": ("max_position_embeddings", 2048),
            "vocabulary": ("vocab_size", 50432),
            "dropout": ("hidden_dropout", 0.0),
            "attention_dropout": ("attention_dropout", 0.0),
            "tied": ("tie_word_embeddings", False),
        },
        fields.gpt_neox,
        activation=("hidden_act", "gelu"),
        activations=GELU_OR_RELU,
        fixed={"positions": "rotary", "attention": "flash"},
    ),
    "falcon": Family(
        keys={
            "layers": ("num_hidden_layers", 32),
            "hidden": ("hidden_size", 4544),
            "heads": ("num_attention_heads", 71),
            "feed_forward": ("ffn_hidden_size", 0),
            "sequence": ("max_position_embeddings", 2048),
            "vocabulary": ("vocab_size", 65024),
            "attention_dropout": ("attention_dropout", 0.0),
            "bias": ("bias", False),
            "tied": ("tie_word_embeddings", True),
        },
        activation=("activation", "gelu"),
        activations=GELU_OR_RELU,
        architectures=("FalconForCausalLM", "FalconModel", "RWForCausalLM"),
        only={**NO_WINDOW, "alibi": False, "hidden_dropout": 0.0},
        fixed={"positions": "rotary", "attention": "flash", "dropout": 0.0},
        synonyms={
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_embed": "hidden_size",
            "n_head_kv": "num_kv_heads",
        },
        computed=fields.falcon,
    ),
    "olmo": language_model(
        "Olmo",
        _OLMO_KEYS,
        fields.attention_bias,
        only={**NO_WINDOW, "clip_qkv": None},
        fixed={**_LAYER_NORM, "norm_parameters": "none"},
    ),
    "olmo2": language_model("Olmo2", _OLMO_KEYS, fields.attention_bias, fixed=_OLMO2_FIXED),
    "olmo3": language_model("Olmo3", _OLMO_KEYS, _olmo3, only={}, fixed=_OLMO2_FIXED),
    "smollm3": language_model(
        "SmolLM3",
        llama_keys(36, 2048, 16, 11008, 128256, 32768, kv_heads=4, tied=True),
        _smollm3,
        only={},
    ),
    "ernie4_5": language_model(
        "Ernie4_5",
        llama_keys(18, 1024, 16, 3072, 103424, 131072, kv_heads=2, head_elements=128, tied=True),
        _bias("use_bias"),
    ),
    "glm": language_model("Glm", _GLM_KEYS, _glm),
    "glm4": language_model("Glm4", _GLM_KEYS, _glm, fixed={**LLAMA, "norm_position": "both"}),
    "cohere": language_model(
        "Cohere",
        _COHERE_KEYS,
        fields.attention_bias,
        only={**NO_WINDOW, "use_qk_norm": False},
        fixed=_COHERE_FIXED,
    ),
    "cohere2": language_model(
        "Cohere2",
        _COHERE_KEYS,
        _without_rotation_where_all_is_seen(40),
        only={"use_qk_norm": False},
        fixed=_COHERE_FIXED,
    ),
    "exaone4": language_model(
        "Exaone4",
        llama_keys(32, 4096, 32, 16384, 102400, 2048, kv_heads=32),
        _without_rotation_where_all_is_seen(32),
        only={},
        fixed={**LLAMA, "norm_position": "output", "query_key_norm": True},
    ),
    "starcoder2": language_model(
        "Starcoder2",
        {
            **llama_keys(30, 3072, 24, 12288, 49152, 4096, kv_heads=2, tied=True),
            "dropout": ("residual_dropout", 0.0),
        },
        _starcoder2,
        activation=("hidden_act", "gelu_pytorch_tanh"),
        activations=GELU,
        only={},
        fixed=_LAYER_NORM,
    ),
    "nemotron": language_model(
        "Nemotron",
        llama_keys(32, 6144, 48, 24576, 256000, 4096),
        _nemotron,
        activation=("hidden_act", "relu2"),
        activations=_RELU2,
        fixed=_LAYER_NORM,
    ),
    "arcee": language_model(
        "Arcee",
        llama_keys(32, 2560, 32, 18432, 32000, 4096),
        fields.llama,
        activation=("hidden_act", "relu2"),
        activations=_RELU2,
    ),
    "granite": language_model("Granite", _LLAMA_KEYS, fields.llama, fixed=_SCALED_EMBEDDING),
    "stablelm": language_model(
        "StableLm",
        llama_keys(32, 2560, 32, 6912, 50304, 4096, kv_heads=32),
        _stablelm,
        only={**NO_WINDOW, "qk_layernorm": False, "hidden_dropout": 0.0},
        fixed=_LAYER_NORM,
    ),
    "phi": language_model(
        "Phi",
        {**llama_keys(24, 2048, 32, 8192, 51200, 2048), "dropout": ("resid_pdrop", 0.0)},
        lambda plain: {
            **fields.embedding_dropout(plain, ("embd_pdrop", 0.0), ("resid_pdrop", 0.0)),
            **_partly_rotated(plain, 2048, 32, 0.5),
        },
        activation=("hidden_act", "gelu_new"),
        activations=GELU,
        only={**NO_WINDOW, "qk_layernorm": False},
        fixed={
            **_LAYER_NORM,
            "bias": True,
            "head_bias": True,
            "residual": "parallel_shared_norm",
        },
    ),
    "seed_oss": language_model(
        "SeedOss",
        {
            **llama_keys(64, 4096, 80, 27648, 155136, 524288, kv_heads=8, head_elements=128),
            "dropout": ("residual_dropout", 0.1),
            "attention_dropout": ("attention_dropout", 0.1),
        },
        _seed_oss,
        fixed={**LLAMA, "embedding_dropout": False},
    ),
    "hunyuan_v1_dense": language_model(
        "HunYuanDenseV1",
        llama_keys(32, 4096, 32, 11008, 290943, 2048),
        fields.attention_bias,
        only={**NO_WINDOW, "use_qk_norm": True, "use_cla": False},
        fixed={**LLAMA, "query_key_norm": True},
        synonyms={"attention_head_dim": "head_dim"},
    ),
    "internlm2": language_model(
        "InternLM2",
        llama_keys(32, 4096, 32, 11008, 103168, 2048),
        lambda plain: fields.attention_bias({"attention_bias": flag(plain, "bias", True)}),
    ),
    "internlm3": language_model(
        "InternLM3",
        llama_keys(32, 4096, 32, 11008, 128512, 32768),
        _internlm3,
    ),
    "gpt_bigcode": language_model(
        "GPTBigCode",
        _GPT2_KEYS,
        _gpt_bigcode,
        activation=("activation_function", "gelu_pytorch_tanh"),
        activations=GELU,
        only={**NO_WINDOW, "scale_attn_weights": True},
        fixed={},
    ),
    # The language models of images and text, where they are no family of their own.
    "qwen2_vl_text": language_model(
        "Qwen2VLText",
        llama_keys(80, 8192, 64, 29568, 152064, 32768, kv_heads=8),
        lambda plain: fields.qwen2({"max_window_layers": 80, "num_hidden_layers": 80, **plain}),
        only={},
        fixed={**LLAMA, "query_key_value_bias": True},
    ),
    "mllama_text_model": language_model(
        "MllamaText",
        llama_keys(40, 4096, 32, 14336, 128256, 131072, kv_heads=8)
        | {"attention_dropout": ("dropout", 0.0)},
        _mllama,
    ),
    "qwen3_vl_text": language_model(
        "Qwen3VLText",
        _QWEN3_KEYS | {"sequence": ("max_position_embeddings", 128000)},
        fields.attention_bias,
        fixed={**LLAMA, "query_key_norm": True},
    ),
}
"""By ``model_type``; ``gemma3`` holds a ``gemma3_text`` (`phaze_opt.workload.huggingface`)."""
