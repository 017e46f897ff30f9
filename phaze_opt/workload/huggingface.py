"""The shape of a model from its Hugging Face ``config.json``; nothing is imported or downloaded.

Such a file leaves out what equals the defaults of its configuration class, so those of GPT-2, Llama
and BERT (transformers 4) are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from phaze_opt.codec import from_builtins, read_file
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.model_string import LLAMA

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
}


def read_huggingface_config(path: Path) -> TransformerConfig:
    """Return the shape in a ``config.json``, or in the folder that holds one.

    Raises
    ------
    NotFoundError
        If there is no file.
    InputError
        If it is broken, of another model type than GPT-2, Llama and BERT, or of a shape that the
        family does not have.
    """
    if path.is_dir():
        path = path / "config.json"
    what = "Hugging Face configuration"
    try:
        plain = msgspec.json.decode(read_file(path, what))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"The {what} at {path} is not valid JSON: {error}.") from None
    if not isinstance(plain, dict) or "model_type" not in plain:
        raise InputError(f"The {what} at {path} has no model_type.")
    if plain["model_type"] not in _READERS:
        raise unknown_name("model_type", plain["model_type"], _READERS)
    fields = _READERS[plain["model_type"]](plain)
    return from_builtins(fields, TransformerConfig, f"{what} at {path}")


def _activation(name: object) -> str:
    """Return the family's activation of a two-matrix feed-forward network."""
    if str(name) not in _ACTIVATIONS:
        raise unknown_name("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[str(name)]


def _gpt2(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Map the fields of ``GPT2Config``."""
    return {
        "layers": plain.get("n_layer", 12),
        "hidden": plain.get("n_embd", 768),
        "heads": plain.get("n_head", 12),
        "sequence": plain.get("n_positions", 1024),
        "vocabulary": plain.get("vocab_size", 50257),
        "feed_forward": plain.get("n_inner") or 0,
        "activation": _activation(plain.get("activation_function", "gelu_new")),
        "dropout": plain.get("resid_pdrop", 0.1),
        "attention_dropout": plain.get("attn_pdrop", 0.1),
        "tied": plain.get("tie_word_embeddings", True),
    }


def _llama(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Map the fields of ``LlamaConfig``."""
    hidden, heads = plain.get("hidden_size", 4096), plain.get("num_attention_heads", 32)
    if plain.get("hidden_act", "silu") != "silu":
        raise InputError(f"hidden_act is {plain['hidden_act']!r}, but a Llama must have 'silu'.")
    for key in ("attention_bias", "mlp_bias"):
        if plain.get(key, False):
            raise InputError(f"{key} is true, but only Llama models without biases are supported.")
    head_dim = plain.get("head_dim") or 0
    if isinstance(hidden, int) and isinstance(heads, int) and head_dim * heads not in (0, hidden):
        raise InputError(
            f"head_dim is {head_dim}, but it must be hidden_size / num_attention_heads, "
            f"{hidden} / {heads}."
        )
    return LLAMA | {
        "layers": plain.get("num_hidden_layers", 32),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": plain.get("num_key_value_heads") or 0,
        "feed_forward": plain.get("intermediate_size", 11008),
        "sequence": plain.get("max_position_embeddings", 2048),
        "vocabulary": plain.get("vocab_size", 32000),
        "attention_dropout": plain.get("attention_dropout", 0.0),
        "tied": plain.get("tie_word_embeddings", False),
    }


def _bert(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Map the fields of ``BertConfig``, trained with the masked-language-model head."""
    return {
        "layers": plain.get("num_hidden_layers", 12),
        "hidden": plain.get("hidden_size", 768),
        "heads": plain.get("num_attention_heads", 12),
        "feed_forward": plain.get("intermediate_size", 3072),
        "sequence": plain.get("max_position_embeddings", 512),
        "vocabulary": plain.get("vocab_size", 30522),
        "token_types": plain.get("type_vocab_size", 2),
        "activation": _activation(plain.get("hidden_act", "gelu")),
        "dropout": plain.get("hidden_dropout_prob", 0.1),
        "attention_dropout": plain.get("attention_probs_dropout_prob", 0.1),
        "tied": plain.get("tie_word_embeddings", True),
        "norm_position": "post",
        "embedding_norm": True,
        "final_norm": False,
        "causal": False,
        "head": "masked_language_model",
    }


_READERS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
}
