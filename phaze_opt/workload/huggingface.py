"""The shape of a model from its Hugging Face ``config.json``; nothing is imported or downloaded.

A configuration leaves out the keys that have the default values of its class, so the defaults of
``GPT2Config``, ``LlamaConfig`` and ``BertConfig`` (transformers 4) stand here. A key that changes
operators or shapes is either read into `TransformerConfig` or refused. Ignored are keys that change
neither: epsilons, numbers of special tokens, initial values, ``rope_theta``, ``rope_scaling``,
``use_cache``, and number formats, because training is in bf16 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phaze_opt.codec import from_builtins, from_json, read_file, to_json
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.workload.config import LLAMA, TransformerConfig

_GELU_OR_RELU = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
}

_ONLY: Mapping[str, object] = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "sliding_window": None,
}
"""Keys of every family with the only value that can be read."""


@dataclass(frozen=True)
class _Family:
    """How the configurations of one ``model_type`` are read.

    Attributes
    ----------
    keys
        By field of `TransformerConfig`: the key in the configuration, and its default.
    activation
        Key of the activation and its default.
    activations
        By name in the configuration: the activation of `TransformerConfig`.
    only
        Keys with the only value that can be read, beside `_ONLY`.
    architectures
        Model classes that have the captured head, or no head. The captured head is taken where the
        configuration names no class.
    fixed
        Fields of `TransformerConfig` that all models of the family have.
    synonyms
        Other names of keys that the configuration class accepts.
    """

    keys: Mapping[str, tuple[str, object]]
    activation: tuple[str, str]
    activations: Mapping[str, str]
    only: Mapping[str, object]
    architectures: tuple[str, ...]
    fixed: Mapping[str, object]
    synonyms: Mapping[str, str] = field(default_factory=dict)


_FAMILIES = {
    "gpt2": _Family(
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
        only={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
        },
        architectures=("GPT2LMHeadModel", "GPT2Model"),
        fixed={},
        synonyms={
            "num_hidden_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
        },
    ),
    "llama": _Family(
        keys={
            "layers": ("num_hidden_layers", 32),
            "hidden": ("hidden_size", 4096),
            "heads": ("num_attention_heads", 32),
            "kv_heads": ("num_key_value_heads", 0),
            "feed_forward": ("intermediate_size", 11008),
            "sequence": ("max_position_embeddings", 2048),
            "vocabulary": ("vocab_size", 32000),
            "attention_dropout": ("attention_dropout", 0.0),
            "tied": ("tie_word_embeddings", False),
        },
        activation=("hidden_act", "silu"),
        activations={"silu": "swiglu", "swish": "swiglu"},
        only={"attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0},
        architectures=("LlamaForCausalLM", "LlamaModel"),
        fixed=LLAMA,
    ),
    "bert": _Family(
        keys={
            "layers": ("num_hidden_layers", 12),
            "hidden": ("hidden_size", 768),
            "heads": ("num_attention_heads", 12),
            "feed_forward": ("intermediate_size", 3072),
            "sequence": ("max_position_embeddings", 512),
            "vocabulary": ("vocab_size", 30522),
            "token_types": ("type_vocab_size", 2),
            "dropout": ("hidden_dropout_prob", 0.1),
            "attention_dropout": ("attention_probs_dropout_prob", 0.1),
            "tied": ("tie_word_embeddings", True),
            "causal": ("is_decoder", False),
        },
        activation=("hidden_act", "gelu"),
        activations=_GELU_OR_RELU,
        only={"position_embedding_type": "absolute"},
        architectures=("BertForMaskedLM", "BertLMHeadModel", "BertModel"),
        fixed={
            "norm_position": "post",
            "embedding_norm": True,
            "final_norm": False,
            "head": "masked_language_model",
        },
    ),
}


def read_huggingface_config(path: Path) -> TransformerConfig:
    """Return the shape in a ``config.json``, or in the folder that holds one.

    Raises
    ------
    NotFoundError
        If there is no file.
    InputError
        If the file is broken, is of another model type than GPT-2, Llama and BERT, or has a key
        whose value `TransformerConfig` cannot express.
    """
    if path.is_dir():
        path = path / "config.json"
    what = f"Hugging Face configuration at {path}"
    plain = from_json(read_file(path, "Hugging Face configuration"), dict[str, Any], what)
    if "model_type" not in plain:
        raise InputError(f"The {what} has no model_type.")
    model_type = plain["model_type"]
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        raise unknown_name("model_type", model_type, _FAMILIES)
    family = _FAMILIES[model_type]
    plain |= {family.synonyms[key]: plain[key] for key in plain.keys() & family.synonyms.keys()}
    _refuse_other_values(plain, family)
    config = from_builtins(_fields(plain, family), TransformerConfig, what)
    _refuse_other_shapes(plain, config)
    return config


def _fields(plain: Mapping[str, Any], family: _Family) -> dict[str, Any]:
    """Return the fields of `TransformerConfig`; null stands for a default of zero."""
    fields = dict(family.fixed)
    for name, (key, default) in family.keys.items():
        value = plain.get(key, default)
        fields[name] = default if value is None and default == 0 else value
    key, activation = family.activation
    fields["activation"] = family.activations[plain.get(key, activation)]
    return fields


def _refuse_other_values(plain: Mapping[str, Any], family: _Family) -> None:
    """Refuse keys whose value changes operators or shapes in a way that is not captured."""
    for key, only in {**_ONLY, **family.only}.items():
        if plain.get(key) not in (None, only):
            raise _refusal(key, plain[key], _json(only))
    key, activation = family.activation
    given = plain.get(key, activation)
    if not isinstance(given, str) or given not in family.activations:
        raise _refusal(key, given, ", ".join(map(_json, family.activations)))
    classes = plain.get("architectures") or []
    known = {name.lower() for name in family.architectures}
    if not isinstance(classes, list) or not {str(name).lower() for name in classes} <= known:
        raise _refusal("architectures", classes, ", ".join(map(_json, family.architectures)))


def _refuse_other_shapes(plain: Mapping[str, Any], config: TransformerConfig) -> None:
    """Refuse heads of another size, and dropout at only some of the places where it may be."""
    if plain.get("head_dim") not in (None, 0, config.head_size):
        share = f"hidden_size / num_attention_heads, {config.hidden} / {config.heads},"
        raise _refusal("head_dim", plain["head_dim"], share)
    if plain["model_type"] == "gpt2":
        embedding_dropout = plain.get("embd_pdrop", 0.1)
        if (embedding_dropout == 0) != (config.dropout == 0):
            same = "a value that is zero where resid_pdrop is, and only there,"
            raise _refusal("embd_pdrop", embedding_dropout, same)


def _refusal(key: str, value: object, allowed: str) -> InputError:
    """Build the error for a key whose value cannot be read, with the way that remains."""
    return InputError(
        f"{key} is {_json(value)} in the Hugging Face configuration, but only {allowed} can be "
        "read; capture the model itself instead: "
        "`phaze-opt workload capture MODULE:FACTORY --output FILE.json`."
    )


def _json(value: object) -> str:
    """Return a value as the configuration has it."""
    return to_json(value).decode()
