"""How the configurations of each Hugging Face ``model_type`` are read: a row of a table for each.

A configuration leaves out the keys that have the default values of its class, so the defaults of
the classes (transformers 4.57) stand here. Fields of `TransformerConfig` that no single key states
(a window for every layer, biases that hang on two keys) are computed by the functions below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phaze_opt.codec import to_json
from phaze_opt.errors import InputError
from phaze_opt.workload.config import LLAMA

Plain = Mapping[str, Any]
"""A configuration as it stands in its file."""

CAPTURE_IT = "capture it: `phaze-opt workload capture MODULE:FACTORY --output FILE.json`"
"""The way that is left to a model whose configuration cannot be read."""

_GELU = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
_GELU_OR_RELU = {**_GELU, "relu": "relu"}
_GATED = {"silu": "swiglu", "swish": "swiglu", **dict.fromkeys(_GELU, "geglu")}
_T5 = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu", "gated-silu": "swiglu"}


@dataclass(frozen=True)
class Family:
    """How the configurations of one ``model_type`` are read.

    Attributes
    ----------
    keys
        By field of `TransformerConfig`: the key in the configuration, and its default.
    activation
        Key of the activation and its default.
    activations
        By name in the configuration: the activation of `TransformerConfig`.
    architectures
        Model classes that have the captured head, or no head. The captured head is taken where the
        configuration names no class.
    only
        Keys with the only value that can be read, beside those of every family.
    fixed
        Fields of `TransformerConfig` that all models of the family have.
    synonyms
        Other names of keys that the configuration class accepts.
    computed
        Returns the fields that hang on several keys.
    """

    keys: Mapping[str, tuple[str, object]]
    activation: tuple[str, str]
    activations: Mapping[str, str]
    architectures: tuple[str, ...]
    only: Plain = field(default_factory=dict)
    fixed: Plain = field(default_factory=dict)
    synonyms: Mapping[str, str] = field(default_factory=dict)
    computed: Callable[[Plain], dict[str, Any]] = lambda plain: {}


def refusal(key: str, value: object, allowed: str) -> InputError:
    """Build the error for a key whose value cannot be read, with the way that remains."""
    return InputError(
        f"{key} is {as_json(value)} in the Hugging Face configuration, but only {allowed} can be "
        f"read; {CAPTURE_IT}."
    )


def as_json(value: object) -> str:
    """Return a value as the configuration has it."""
    return to_json(value).decode()


def flag(plain: Plain, key: str, default: bool) -> bool:
    """Return a key that is true or false; null stands for its default.

    Raises
    ------
    InputError
        If it is neither.
    """
    value = plain.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refusal(key, value, "true or false")
    return value


def whole_number(plain: Plain, key: str, default: int) -> int:
    """Return a key that other fields are computed from; null stands for its default.

    Raises
    ------
    InputError
        If it is not a whole number, or is negative.
    """
    value = plain.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise refusal(key, value, "a whole number that is not negative")
    return value


def _layer_windows(plain: Plain, layers: int, window: int, slides: Sequence[bool]) -> Any:
    """Return the window of every block; ``layer_types`` goes before what the class would choose."""
    types = plain.get("layer_types")
    if types is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(types, list) or len(types) != layers or not set(types) <= set(known):
            raise refusal("layer_types", types, f"{' or '.join(known)} for each of {layers} layers")
        slides = [one == "sliding_attention" for one in types]
    if not window or not any(slides):
        return ()
    return tuple(window if one else 0 for one in slides)


def _window(plain: Plain, default: int) -> int:
    """Return the width of a window; null means none, in place of the default."""
    return whole_number(plain, "sliding_window", 0 if "sliding_window" in plain else default)


def _every_layer_slides(default: int) -> Callable[[Plain], dict[str, Any]]:
    """Return what computes one window for all layers, where null means none."""

    def compute(plain: Plain) -> dict[str, Any]:
        layers = whole_number(plain, "num_hidden_layers", 32)
        return {"windows": _layer_windows({}, layers, _window(plain, default), [True] * layers)}

    return compute


def _phi3(plain: Plain) -> dict[str, Any]:
    """Compute windows, the rotated part of a head and the place of dropout."""
    hidden = whole_number(plain, "hidden_size", 3072)
    heads = whole_number(plain, "num_attention_heads", 32)
    return {
        **_every_layer_slides(0)(plain),
        **_embedding_dropout(plain, ("embd_pdrop", 0.0), ("resid_pdrop", 0.0)),
        "rotary_elements": _rotary_elements(plain, hidden, heads, 1.0),
    }


def _qwen2(plain: Plain) -> dict[str, Any]:
    """Compute the windows of the later layers."""
    layers = whole_number(plain, "num_hidden_layers", 32)
    first = whole_number(plain, "max_window_layers", 28)
    window = _window(plain, 4096) if flag(plain, "use_sliding_window", False) else 0
    return {"windows": _layer_windows(plain, layers, window, [i >= first for i in range(layers)])}


def _qwen3(plain: Plain) -> dict[str, Any]:
    """Compute the windows of the later layers, and the biases."""
    return _qwen2(plain) | _attention_bias(plain)


def _gemma(pattern: int) -> Callable[[Plain], dict[str, Any]]:
    """Return what computes the windows of Gemma 2 and 3: every ``pattern``-th layer has none."""

    def compute(plain: Plain) -> dict[str, Any]:
        layers = whole_number(plain, "num_hidden_layers", 26)
        window = _window(plain, 4096)
        every = whole_number(plain, "sliding_window_pattern", pattern) or 1
        slides = [(i + 1) % every != 0 for i in range(layers)]
        return {
            "windows": _layer_windows(plain, layers, window, slides),
            **_attention_bias(plain),
        }

    return compute


def _attention_bias(plain: Plain) -> dict[str, Any]:
    """Compute the biases of the attention, where the other layers have none."""
    bias = flag(plain, "attention_bias", False) or None
    return {"query_key_value_bias": bias, "projection_bias": bias}


def _llama(plain: Plain) -> dict[str, Any]:
    """Compute the biases, which attention and feed-forward network have apart."""
    attention = flag(plain, "attention_bias", False)
    feed_forward = flag(plain, "mlp_bias", False)
    if attention == feed_forward:
        return {"bias": attention}
    biases = {"query_key_value_bias": attention, "projection_bias": attention}
    return {"bias": feed_forward, **biases}


def _embedding_dropout(
    plain: Plain, embedding: tuple[str, float], stream: tuple[str, float]
) -> dict[str, Any]:
    """Compute whether dropout follows the embedding; it may not be the only place."""
    key, default = embedding
    probability = plain.get(key, default)
    if probability and not plain.get(*stream):
        raise refusal(key, probability, f"0.0 where {stream[0]} is 0.0")
    return {"embedding_dropout": bool(probability) or not plain.get(*stream)}


def _gpt2(plain: Plain) -> dict[str, Any]:
    """Compute the place of dropout."""
    return _embedding_dropout(plain, ("embd_pdrop", 0.1), ("resid_pdrop", 0.1))


def _opt(plain: Plain) -> dict[str, Any]:
    """Compute the place of norms, and the position table, whose rows are offset by two."""
    pre = flag(plain, "do_layer_norm_before", True)
    return {
        "norm_position": "pre" if pre else "post",
        "final_norm": pre and not flag(plain, "_remove_final_layer_norm", False),
        "position_rows": whole_number(plain, "max_position_embeddings", 2048) + 2,
    }


def _roberta(plain: Plain) -> dict[str, Any]:
    """Compute the tokens: the first rows of the position table stand for padding."""
    rows = whole_number(plain, "max_position_embeddings", 512)
    return {
        "sequence": rows - whole_number(plain, "pad_token_id", 1) - 1,
        "position_rows": rows,
    }


def _rotary_elements(plain: Plain, hidden: int, heads: int, default: float) -> int:
    """Return how many elements of a head are rotated; 0 for all."""
    rope = plain.get("rope_parameters")
    inside = rope if isinstance(rope, Mapping) else {}
    key = "rotary_pct" if "rotary_pct" in plain else "partial_rotary_factor"
    share = plain.get(key, inside.get("partial_rotary_factor", default))
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise refusal(key, share, "a number above 0 and up to 1")
    size = hidden // max(1, heads)
    return int(size * share) if share < 1 else 0


def _gpt_neox(plain: Plain) -> dict[str, Any]:
    """Compute the rotated part of a head, the biases and the order of the sub-layers."""
    hidden = whole_number(plain, "hidden_size", 6144)
    heads = whole_number(plain, "num_attention_heads", 64)
    bias = None if flag(plain, "attention_bias", True) else False
    return {
        "rotary_elements": _rotary_elements(plain, hidden, heads, 0.25),
        "query_key_value_bias": bias,
        "projection_bias": bias,
        "residual": "parallel" if flag(plain, "use_parallel_residual", True) else "sequential",
    }


def _falcon(plain: Plain) -> dict[str, Any]:
    """Compute the key heads and the order of the sub-layers, which newer Falcons state apart."""
    newer = flag(plain, "new_decoder_architecture", False)
    kv_heads = whole_number(plain, "num_kv_heads", 0) if newer else 0
    if not newer and flag(plain, "multi_query", True):
        kv_heads = 1
    residual = "sequential"
    if newer:
        norms = whole_number(plain, "num_ln_in_parallel_attn", 2)
        residual = "parallel" if norms == 2 else "parallel_shared_norm"
    elif flag(plain, "parallel_attn", True):
        residual = "parallel_shared_norm"
    return {"kv_heads": kv_heads, "residual": residual}


def _vit(plain: Plain) -> dict[str, Any]:
    """Compute the tokens of an image, and the classes from their labels."""
    edge, patch = whole_number(plain, "image_size", 224), whole_number(plain, "patch_size", 16)
    labels = plain.get("id2label")
    count = len(labels) if isinstance(labels, Mapping) and labels else 2
    bias = None if flag(plain, "qkv_bias", True) else False
    return {
        "sequence": (edge // max(1, patch)) ** 2 + 1,
        "vocabulary": whole_number(plain, "num_labels", count),
        "query_key_value_bias": bias,
    }


def _t5(plain: Plain) -> dict[str, Any]:
    """Compute the blocks of the decoder, which are as many as the encoder's where not stated."""
    encoder = whole_number(plain, "num_layers", 6)
    return {"layers": whole_number(plain, "num_decoder_layers", encoder)}


_NO_WINDOW: Plain = {"sliding_window": None}
_BERT_KEYS = {
    "layers": ("num_hidden_layers", 12),
    "hidden": ("hidden_size", 768),
    "heads": ("num_attention_heads", 12),
    "feed_forward": ("intermediate_size", 3072),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
_BERT_TEXT_KEYS = _BERT_KEYS | {
    "sequence": ("max_position_embeddings", 512),
    "token_types": ("type_vocab_size", 2),
    "tied": ("tie_word_embeddings", True),
    "causal": ("is_decoder", False),
}
_BERT_FIXED: Plain = {
    "norm_position": "post",
    "embedding_norm": True,
    "final_norm": False,
    "head": "masked_language_model",
}
_GPT2_NAMES = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}
_LLAMA_KEYS: dict[str, tuple[str, object]] = {
    "layers": ("num_hidden_layers", 32),
    "hidden": ("hidden_size", 4096),
    "heads": ("num_attention_heads", 32),
    "kv_heads": ("num_key_value_heads", 0),
    "head_elements": ("head_dim", 0),
    "feed_forward": ("intermediate_size", 11008),
    "sequence": ("max_position_embeddings", 2048),
    "vocabulary": ("vocab_size", 32000),
    "attention_dropout": ("attention_dropout", 0.0),
    "tied": ("tie_word_embeddings", False),
}
_QWEN_KEYS = _LLAMA_KEYS | {
    "kv_heads": ("num_key_value_heads", 32),
    "feed_forward": ("intermediate_size", 22016),
    "sequence": ("max_position_embeddings", 32768),
    "vocabulary": ("vocab_size", 151936),
}
_GEMMA_KEYS = _LLAMA_KEYS | {
    "layers": ("num_hidden_layers", 28),
    "hidden": ("hidden_size", 3072),
    "heads": ("num_attention_heads", 16),
    "kv_heads": ("num_key_value_heads", 16),
    "head_elements": ("head_dim", 256),
    "feed_forward": ("intermediate_size", 24576),
    "sequence": ("max_position_embeddings", 8192),
    "vocabulary": ("vocab_size", 256000),
    "tied": ("tie_word_embeddings", True),
}
_GEMMA2_KEYS = _GEMMA_KEYS | {
    "layers": ("num_hidden_layers", 26),
    "hidden": ("hidden_size", 2304),
    "heads": ("num_attention_heads", 8),
    "kv_heads": ("num_key_value_heads", 4),
    "feed_forward": ("intermediate_size", 9216),
    "attention_softcap": ("attn_logit_softcapping", 50.0),
    "logit_softcap": ("final_logit_softcapping", 30.0),
}
_GEMMA_ACTIVATION = ("hidden_act", "gelu_pytorch_tanh")
_GEMMA_NAMES = {"hidden_activation": "hidden_act"}
_ONE_WAY: Plain = {"use_bidirectional_attention": False}

FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
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
        activation=("activation_function", "gelu_new"),
        activations=_GELU_OR_RELU,
        architectures=("GPT2LMHeadModel", "GPT2Model"),
        only={
            **_NO_WINDOW,
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
        },
        synonyms=_GPT2_NAMES,
        computed=_gpt2,
    ),
    "llama": Family(
        keys=_LLAMA_KEYS,
        activation=("hidden_act", "silu"),
        activations=_GATED,
        architectures=("LlamaForCausalLM", "LlamaModel"),
        only={**_NO_WINDOW, "partial_rotary_factor": 1.0},
        fixed=LLAMA,
        computed=_llama,
    ),
    "mistral": Family(
        keys=_LLAMA_KEYS
        | {
            "kv_heads": ("num_key_value_heads", 8),
            "feed_forward": ("intermediate_size", 14336),
            "sequence": ("max_position_embeddings", 131072),
        },
        activation=("hidden_act", "silu"),
        activations=_GATED,
        architectures=("MistralForCausalLM", "MistralModel"),
        only={"layer_types": None},
        fixed=LLAMA,
        computed=_every_layer_slides(4096),
    ),
    "qwen2": Family(
        keys=_QWEN_KEYS,
        activation=("hidden_act", "silu"),
        activations=_GATED,
        architectures=("Qwen2ForCausalLM", "Qwen2Model"),
        fixed={**LLAMA, "query_key_value_bias": True},
        computed=_qwen2,
    ),
    "qwen3": Family(
        keys=_QWEN_KEYS | {"head_elements": ("head_dim", 128)},
        activation=("hidden_act", "silu"),
        activations=_GATED,
        architectures=("Qwen3ForCausalLM", "Qwen3Model"),
        fixed={**LLAMA, "query_key_norm": True},
        computed=_qwen3,
    ),
    "phi3": Family(
        keys=_LLAMA_KEYS
        | {
            "hidden": ("hidden_size", 3072),
            "feed_forward": ("intermediate_size", 8192),
            "sequence": ("max_position_embeddings", 4096),
            "vocabulary": ("vocab_size", 32064),
            "dropout": ("resid_pdrop", 0.0),
        },
        activation=("hidden_act", "silu"),
        activations=_GATED,
        architectures=("Phi3ForCausalLM", "Phi3Model"),
        only={"layer_types": None},
        fixed=LLAMA,
        computed=_phi3,
    ),
    "gemma": Family(
        keys=_GEMMA_KEYS,
        activation=_GEMMA_ACTIVATION,
        activations=_GATED,
        architectures=("GemmaForCausalLM", "GemmaModel"),
        only={**_NO_WINDOW, **_ONE_WAY},
        fixed={**LLAMA, "embedding_scale": True},
        synonyms=_GEMMA_NAMES,
        computed=_attention_bias,
    ),
    "gemma2": Family(
        keys=_GEMMA2_KEYS,
        activation=_GEMMA_ACTIVATION,
        activations=_GATED,
        architectures=("Gemma2ForCausalLM", "Gemma2Model"),
        only=_ONE_WAY,
        fixed={**LLAMA, "embedding_scale": True, "norm_position": "both"},
        synonyms=_GEMMA_NAMES,
        computed=_gemma(2),
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
        activations=_GATED,
        architectures=("Gemma3ForCausalLM", "Gemma3TextModel"),
        only=_ONE_WAY,
        fixed={
            **LLAMA,
            "embedding_scale": True,
            "norm_position": "both",
            "query_key_norm": True,
        },
        synonyms={**_GEMMA_NAMES, "_sliding_window_pattern": "sliding_window_pattern"},
        computed=_gemma(6),
    ),
    "opt": Family(
        keys={
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
        activation=("activation_function", "relu"),
        activations=_GELU_OR_RELU,
        architectures=("OPTForCausalLM", "OPTModel"),
        only={**_NO_WINDOW, "layerdrop": 0.0, "layer_norm_elementwise_affine": True},
        fixed={"embedding_dropout": False},
        synonyms={"d_model": "hidden_size"},
        computed=_opt,
    ),
    "gpt_neox": Family(
        keys={
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
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("GPTNeoXForCausalLM", "GPTNeoXModel"),
        only=_NO_WINDOW,
        fixed={"positions": "rotary", "attention": "flash"},
        computed=_gpt_neox,
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
        activations=_GELU_OR_RELU,
        architectures=("FalconForCausalLM", "FalconModel", "RWForCausalLM"),
        only={**_NO_WINDOW, "alibi": False, "hidden_dropout": 0.0},
        fixed={"positions": "rotary", "attention": "flash", "dropout": 0.0},
        synonyms={
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_embed": "hidden_size",
            "n_head_kv": "num_kv_heads",
        },
        computed=_falcon,
    ),
    "bert": Family(
        keys=_BERT_TEXT_KEYS | {"vocabulary": ("vocab_size", 30522)},
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("BertForMaskedLM", "BertLMHeadModel", "BertModel"),
        only={**_NO_WINDOW, "position_embedding_type": "absolute"},
        fixed=_BERT_FIXED,
    ),
    "roberta": Family(
        keys=_BERT_TEXT_KEYS | {"vocabulary": ("vocab_size", 50265)},
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("RobertaForMaskedLM", "RobertaForCausalLM", "RobertaModel"),
        only={**_NO_WINDOW, "position_embedding_type": "absolute"},
        fixed=_BERT_FIXED,
        computed=_roberta,
    ),
    "vit": Family(
        keys=_BERT_KEYS
        | {
            "dropout": ("hidden_dropout_prob", 0.0),
            "attention_dropout": ("attention_probs_dropout_prob", 0.0),
            "image_size": ("image_size", 224),
            "patch_size": ("patch_size", 16),
            "channels": ("num_channels", 3),
        },
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        architectures=("ViTForImageClassification",),
        only=_NO_WINDOW,
        fixed={"causal": False, "tied": False, "head": "classifier"},
        computed=_vit,
    ),
    "t5": Family(
        keys={
            "encoder_layers": ("num_layers", 6),
            "hidden": ("d_model", 512),
            "heads": ("num_heads", 8),
            "head_elements": ("d_kv", 64),
            "feed_forward": ("d_ff", 2048),
            "sequence": ("n_positions", 512),
            "vocabulary": ("vocab_size", 32128),
            "relative_buckets": ("relative_attention_num_buckets", 32),
            "dropout": ("dropout_rate", 0.1),
            "attention_dropout": ("dropout_rate", 0.1),
            "inner_dropout": ("dropout_rate", 0.1),
            "tied": ("tie_word_embeddings", True),
        },
        activation=("feed_forward_proj", "relu"),
        activations=_T5,
        architectures=(
            "T5ForConditionalGeneration",
            "T5WithLMHeadModel",
            "T5Model",
        ),
        only={**_NO_WINDOW, "is_encoder_decoder": True},
        fixed={"norm": "rms_norm", "positions": "relative", "bias": False},
        synonyms={
            "num_hidden_layers": "num_layers",
            "hidden_size": "d_model",
            "num_attention_heads": "num_heads",
        },
        computed=_t5,
    ),
}
"""By ``model_type``; ``gemma3`` holds a ``gemma3_text`` (`phaze_opt.workload.huggingface`).

Fused attention is taken where positions are rotary, and scores in memory elsewhere, as for the
named models of the same time.
"""
